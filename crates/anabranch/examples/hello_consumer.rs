//! Reads a stream and prints each record. Run several instances, split and merge the stream, stop
//! them with Ctrl-C or kill them: each key stays in order, and no record is lost.
//!
//! ```sh
//! anabranch local &            # and the exports that it prints
//! cargo run --release -p anabranch --example hello_consumer -- orders
//! ```

use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::SqliteStore;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1) {
        Some(stream) => read(&stream).await,
        None => Err("usage: hello_consumer STREAM".into()),
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
    let kinesis = anabranch::stream::aws::from_env().await?;
    let leases = SqliteStore::open("hello.db", "hello")?;
    Consumer::new(stream, "hello")
        .with_kinesis(kinesis)
        .with_leases(leases)
        .each(print)
        .run()
        .await?;
    Ok(())
}

async fn print(record: Delivery) -> Result<(), HandlerError> {
    println!("{} {}: {}", record.shard, record.partition_key, record.data.escape_ascii());
    Ok(())
}
