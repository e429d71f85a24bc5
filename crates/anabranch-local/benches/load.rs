//! Load generator that measures CPU time and memory of the *server* under puts and gets. It talks
//! to the server through the AWS SDK and prints `put_ns get_ns memory_bytes`: CPU time per record
//! put, CPU time per record read, and resident memory per stored record.
//!
//! Started by `cargo xtask bench local` as `load PID RECORDS`, with the endpoint in
//! `AWS_ENDPOINT_URL`.

#![expect(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]

use aws_sdk_kinesis::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::{PutRecordsRequestEntry, ShardIteratorType, StreamStatus};
use aws_sdk_kinesis::{Client, Config};
use std::error::Error;
use std::fs;
use std::time::Duration;

const STREAM: &str = "load";
const SHARDS: i32 = 8;
const BATCH: usize = 500;
const DATA_BYTES: usize = 100;
/// Number of times the whole stream is read. A single pass is too short to measure well.
const READINGS: usize = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` adds its own flag. Without a pid there is nothing to measure.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let [pid, records] = &args[..] else {
        println!("run it by `cargo xtask bench local`");
        return Ok(());
    };
    let (pid, records): (u32, usize) = (pid.parse()?, records.parse()?);
    let client = client(&std::env::var("AWS_ENDPOINT_URL")?);
    create(&client).await?;

    // The first batch warms up both sides and is not measured.
    put(&client, BATCH).await?;
    let (cpu, memory) = (cpu_ns(pid)?, resident_bytes(pid)?);
    put(&client, records).await?;
    let put_ns = (cpu_ns(pid)? - cpu) as f64 / records as f64;
    let memory_bytes = (resident_bytes(pid)? - memory) as f64 / records as f64;

    // As with the puts, the first pass only warms up.
    get_all(&client, records + BATCH).await?;
    let cpu = cpu_ns(pid)?;
    for _ in 0..READINGS {
        get_all(&client, records + BATCH).await?;
    }
    let got = (records + BATCH) * READINGS;
    let get_ns = (cpu_ns(pid)? - cpu) as f64 / got as f64;
    println!("{put_ns:.0} {get_ns:.0} {memory_bytes:.1}");
    Ok(())
}

fn client(endpoint: &str) -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "load"))
        .http_client(http);
    Client::from_conf(config.build())
}

async fn create(client: &Client) -> Result<(), Box<dyn Error>> {
    client.create_stream().stream_name(STREAM).shard_count(SHARDS).send().await?;
    loop {
        let reply = client.describe_stream_summary().stream_name(STREAM).send().await?;
        let summary = reply.stream_description_summary().ok_or("no summary")?;
        if *summary.stream_status() == StreamStatus::Active {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn put(client: &Client, records: usize) -> Result<(), Box<dyn Error>> {
    let data = Blob::new(vec![b'x'; DATA_BYTES]);
    let mut sent = 0;
    while sent < records {
        let entries = (sent..sent + BATCH).map(|i| {
            PutRecordsRequestEntry::builder()
                .partition_key(format!("key-{:07}", i % 10_000))
                .data(data.clone())
                .build()
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let reply =
            client.put_records().stream_name(STREAM).set_records(Some(entries)).send().await?;
        assert_eq!(reply.failed_record_count(), Some(0), "a record was refused");
        sent += BATCH;
    }
    Ok(())
}

/// Reads the stream from its start and asserts that it holds `records` records.
async fn get_all(client: &Client, records: usize) -> Result<(), Box<dyn Error>> {
    let mut got = 0;
    for shard in 0..SHARDS {
        let id = format!("shardId-{shard:012}");
        let at = client.get_shard_iterator().stream_name(STREAM).shard_id(id);
        let at = at.shard_iterator_type(ShardIteratorType::TrimHorizon).send().await?;
        let mut iterator = at.shard_iterator;
        loop {
            let reply = client.get_records().set_shard_iterator(iterator).send().await?;
            if reply.records().is_empty() {
                break;
            }
            got += reply.records().len();
            iterator = reply.next_shard_iterator;
        }
    }
    assert_eq!(got, records, "the server lost records");
    Ok(())
}

/// Returns the CPU time of all threads of a process, from the scheduler's own counters.
fn cpu_ns(pid: u32) -> Result<u64, Box<dyn Error>> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split(' ').next().ok_or("empty schedstat")?.parse::<u64>()?;
    }
    Ok(total)
}

fn resident_bytes(pid: u32) -> Result<i64, Box<dyn Error>> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<i64>()? * 1024)
}
