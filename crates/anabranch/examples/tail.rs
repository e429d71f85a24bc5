//! Prints records as they arrive from now on, each key in order. Stores nothing.
//!
//! ```sh
//! anabranch local &            # and the exports that it prints
//! cargo run --release -p anabranch --example tail -- orders
//! ```

use anabranch::tail::Tail;
use std::error::Error;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1) {
        Some(stream) => read(&stream).await,
        None => Err("usage: tail STREAM".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) async fn read(stream: &str) -> Result<(), Box<dyn Error>> {
    let kinesis = anabranch::stream::aws::from_env().await?;
    let mut tail = Tail::new(stream).with_kinesis(kinesis);
    while let Some(record) = tail.next().await {
        let record = record?;
        println!("{} {}: {}", record.shard, record.partition_key, record.data.escape_ascii());
    }
    Ok(())
}
