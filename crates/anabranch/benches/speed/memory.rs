//! Resident memory of a producer over many records, with a slow sink.

use crate::cpu;
use crate::endpoint::Endpoint;
use crate::produce::keys;
use anabranch::producer::Producer;
use anabranch::stream::WireFormat;
use bytes::Bytes;
use std::time::Duration;

/// Delay of the sink's answers.
const DELAY_MS: u64 = 50;
/// Number of memory samples per run.
const LOOKS: u64 = 10;

pub(crate) fn run(records: u64) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let endpoint = Endpoint::start(DELAY_MS)?;
    let looks = runtime.block_on(put(&endpoint, records))?;
    println!("\nresident memory, {records} records of 100 B, replies after {DELAY_MS} ms");
    for (records, kib) in &looks {
        println!("{records:>12} records{kib:>10} KiB");
    }
    let settled: Vec<u64> = looks.iter().skip(2).map(|(_, kib)| *kib).collect();
    if let (Some(first), Some(last)) = (settled.first(), settled.last()) {
        println!("from the third look to the last: {first} to {last} KiB");
    }
    Ok(())
}

async fn put(endpoint: &Endpoint, records: u64) -> Result<Vec<(u64, u64)>, String> {
    let producer = Producer::new("s")
        .with_rate_percent(1_000)
        .with_kinesis(endpoint.ours(WireFormat::Cbor))
        .start();
    let producer = producer.await.map_err(|error| error.to_string())?;
    let (keys, data) = (keys(), Bytes::from(vec![b'x'; 100]));
    let mut keys = keys.iter().cycle();
    let mut looks = Vec::new();
    for look in 1..=LOOKS {
        for key in keys.by_ref().take(usize::try_from(records / LOOKS).unwrap_or(0)) {
            // The outcome is not awaited: the summary at the end covers every record.
            let ticket = producer.put(key.as_str(), data.clone()).await;
            drop(ticket.map_err(|error| error.to_string())?);
        }
        looks.push((look * (records / LOOKS), cpu::resident_kib().unwrap_or(0)));
    }
    let account = producer.close(Duration::from_mins(1)).await;
    if account.placed != records / LOOKS * LOOKS {
        return Err(format!("not every record was placed: {account:?}"));
    }
    Ok(looks)
}
