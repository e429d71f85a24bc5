//! A processor per shard, with the callbacks and the checkpointer of KCL.
//!
//! ```sh
//! anabranch local &            # and the exports that it prints
//! cargo run --release -p anabranch --example shard_processor -- orders
//! ```

use anabranch::consumer::{
    Checkpointer, Consumer, HandlerError, ProcessorBatch, ShardProcessor, ShardStart,
};
use anabranch::lease::SqliteStore;
use anabranch_model::lease::LeaseKey;
use std::process::ExitCode;
use std::sync::Arc;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1) {
        Some(stream) => read(&stream).await,
        None => Err("usage: shard_processor STREAM".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) async fn read(stream: &str) -> Result<(), HandlerError> {
    Consumer::new(stream, "printer")
        .with_kinesis(anabranch::stream::aws::from_env().await?)
        .with_leases(SqliteStore::open("printer.db", "printer")?)
        .processors(|shard: &Arc<LeaseKey>| Printer { shard: Arc::clone(shard) })
        .run()
        .await?;
    Ok(())
}

struct Printer {
    shard: Arc<LeaseKey>,
}

impl ShardProcessor for Printer {
    async fn initialize(&mut self, start: ShardStart) -> Result<(), HandlerError> {
        println!("{} begins at {}", self.shard, start.at);
        Ok(())
    }

    async fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        for record in &batch.records {
            println!("{} {}: {}", self.shard, record.partition_key, record.data.escape_ascii());
        }
        checkpointer.checkpoint().await?;
        Ok(())
    }

    async fn lease_lost(&mut self) {
        println!("{} goes on elsewhere", self.shard);
    }

    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), HandlerError> {
        println!("{} has ended", self.shard);
        checkpointer.checkpoint().await?;
        Ok(())
    }

    async fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        checkpointer.checkpoint().await?;
        Ok(())
    }
}
