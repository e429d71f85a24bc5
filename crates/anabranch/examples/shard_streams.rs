//! Each shard as a stream of records that are acknowledged individually and in any order.
//!
//! ```sh
//! anabranch local &            # and the exports that it prints
//! cargo run --release -p anabranch --example shard_streams -- orders
//! ```

use anabranch::consumer::{Consumer, HandlerError, ShardStream};
use anabranch::lease::SqliteStore;
use std::process::ExitCode;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1) {
        Some(stream) => read(&stream).await,
        None => Err("usage: shard_streams STREAM".into()),
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
    let mut shards = Consumer::new(stream, "streamer")
        .with_kinesis(anabranch::stream::aws::from_env().await?)
        .with_leases(SqliteStore::open("streamer.db", "streamer")?)
        .shard_streams(1_000);
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            stopped = tokio::signal::ctrl_c() => {
                stopped?;
                // The streams end, acknowledged records are checkpointed, and the leases are
                // released.
                shards.stop().await?;
                return Ok(());
            }
            shard = shards.next() => match shard {
                Some(shard) => {
                    readers.spawn(print(shard));
                }
                None => return Ok(shards.stop().await?),
            },
            Some(_) = readers.join_next() => {}
        }
    }
}

async fn print(mut shard: ShardStream) {
    while let Some(record) = shard.next().await {
        println!("{} {}: {}", shard.shard(), record.partition_key, record.data.escape_ascii());
        record.ack();
    }
}
