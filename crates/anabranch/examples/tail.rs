//! Prints what arrives from now on, each key in order, and stores nothing.
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
    match read().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn read() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("usage: tail STREAM")?;
    let kinesis = anabranch::stream::aws::from_env().await?;
    let mut tail = Tail::new(kinesis, stream);
    while let Some(record) = tail.next().await {
        let record = record?;
        println!("{} {}: {}", record.shard, record.partition_key, record.data.escape_ascii());
    }
    Ok(())
}
