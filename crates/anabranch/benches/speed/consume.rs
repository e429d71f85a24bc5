//! CPU time per record of the consumer, plain and aggregated, compared with a plain loop of
//! `GetRecords`.

use crate::cpu;
use crate::endpoint::Endpoint;
use crate::produce::per;
use crate::replies;
use crate::table::{self, Rounds};
use anabranch::consumer::{Batch, Consumer, Delivery, HandlerError};
use anabranch::lease::MemoryStore;
use anabranch::stream::WireFormat;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const ROUNDS: usize = 3;
const STREAMS: [&str; 4] = ["plain-100", "plain-1024", "aggregated-100", "aggregated-1024"];
const FORMATS: [WireFormat; 2] = [WireFormat::Cbor, WireFormat::Json];

pub(crate) fn run(records: u64, only: Option<&&str>) -> Result<(), String> {
    let endpoint = Endpoint::start(0)?;
    if only == Some(&"tls") {
        return over_tls(records);
    }
    if let Some(only) = only {
        for (stream, format, each) in cases() {
            let name = name(stream, format, each);
            if name.contains(*only) {
                let case = consume(&endpoint, stream, format, each, records);
                println!("{name}: {:.0} ns", runtime()?.block_on(case)?);
            }
        }
        return Ok(());
    }
    let mut ours: Vec<Rounds> = (0..STREAMS.len() * 4).map(|_| Rounds::default()).collect();
    let mut bare: Vec<Rounds> = STREAMS.iter().map(|_| Rounds::default()).collect();
    for _ in 0..ROUNDS {
        for (place, (stream, format, each)) in cases().enumerate() {
            let records = if stream.ends_with("1024") { records / 4 } else { records };
            let case = consume(&endpoint, stream, format, each, records);
            ours[place].add(runtime()?.block_on(case)?);
        }
        for (stream, rounds) in STREAMS.iter().zip(&mut bare) {
            let records = if stream.ends_with("1024") { records / 16 } else { records / 4 };
            rounds.add(runtime()?.block_on(get_bare(&endpoint, stream, records))?);
        }
    }
    table::head("CPU per user record");
    for (place, (stream, format, each)) in cases().enumerate() {
        let beside = STREAMS.iter().position(|name| *name == stream).unwrap_or(0);
        table::row(&name(stream, format, each), &ours[place], &bare[beside]);
    }
    for (stream, rounds) in STREAMS.iter().zip(&bare) {
        table::row(&format!("bare GetRecords, JSON, {stream} B, not taken apart"), rounds, rounds);
    }
    over_tls(records)
}

/// Measures over TLS with HTTP/2, as in production.
fn over_tls(records: u64) -> Result<(), String> {
    const MEASURED: [&str; 2] = ["plain-100", "aggregated-100"];
    let endpoint = Endpoint::start_tls()?;
    let mut rows: Vec<_> =
        MEASURED.iter().map(|stream| (*stream, Rounds::default(), 0, Rounds::default())).collect();
    for _ in 0..ROUNDS {
        for (stream, ours, connections, bare) in &mut rows {
            let case = consume(&endpoint, stream, WireFormat::Cbor, true, records);
            ours.add(runtime()?.block_on(case)?);
            *connections = endpoint.connections().max(*connections);
            bare.add(runtime()?.block_on(get_bare(&endpoint, stream, records / 4))?);
        }
    }
    table::head("CPU per user record, over TLS and HTTP/2");
    for (stream, ours, connections, bare) in &rows {
        table::row(&name(stream, WireFormat::Cbor, true), ours, bare);
        println!("  connections: {connections}");
        table::row(&format!("bare GetRecords, JSON, {stream} B, not taken apart"), bare, bare);
    }
    Ok(())
}

/// Returns a new runtime, so that no task of one case runs during the next.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}

fn name(stream: &str, format: WireFormat, each: bool) -> String {
    let by = if each { "one by one" } else { "in batches" };
    format!("{stream} B, {format:?}, {by}")
}

/// Returns each stream in both formats, with a handler per record and a handler per batch.
fn cases() -> impl Iterator<Item = (&'static str, WireFormat, bool)> {
    let with_format = |stream| FORMATS.into_iter().map(move |format| (stream, format));
    let formats = STREAMS.into_iter().flat_map(with_format);
    formats.flat_map(|(stream, format)| [true, false].map(|each| (stream, format, each)))
}

/// Counts delivered records, and stores the CPU time after the first tenth and at the end.
struct Meter {
    records: u64,
    seen: AtomicU64,
    from_ns: AtomicU64,
    until_ns: AtomicU64,
    done: Notify,
}

impl Meter {
    fn count(&self, records: u64) {
        let before = self.seen.fetch_add(records, Ordering::Relaxed);
        let crosses = |mark: u64| before < mark && before + records >= mark;
        if crosses(self.records / 10) {
            self.from_ns.store(cpu::spent_ns(), Ordering::Relaxed);
        }
        if crosses(self.records) {
            self.until_ns.store(cpu::spent_ns(), Ordering::Relaxed);
            self.done.notify_one();
        }
    }
}

async fn consume(
    endpoint: &Endpoint,
    stream: &str,
    format: WireFormat,
    each: bool,
    records: u64,
) -> Result<f64, String> {
    let meter = Arc::new(Meter {
        records,
        seen: AtomicU64::new(0),
        from_ns: AtomicU64::new(0),
        until_ns: AtomicU64::new(0),
        done: Notify::new(),
    });
    let consumer = Consumer::new(stream, "bench")
        .with_kinesis(endpoint.ours(format))
        .with_leases(MemoryStore::new())
        .with_settings(|settings| settings.grace_period = Duration::from_millis(0));
    let (counter, over) = (Arc::clone(&meter), Arc::clone(&meter));
    let stop = async move { over.done.notified().await };
    let ran = if each {
        let handle = move |_: Delivery| {
            counter.count(1);
            std::future::ready(Ok::<(), HandlerError>(()))
        };
        consumer.each(handle).run_until(stop).await
    } else {
        let handle = move |batch: Batch| {
            counter.count(batch.records.len() as u64);
            std::future::ready(Ok::<(), HandlerError>(()))
        };
        consumer.batches(500, handle).run_until(stop).await
    };
    ran.map_err(|error| error.to_string())?;
    let spent = meter.until_ns.load(Ordering::Relaxed) - meter.from_ns.load(Ordering::Relaxed);
    Ok(per(spent, records - records / 10))
}

/// Reads with the SDK alone, and accesses each record's data.
async fn get_bare(endpoint: &Endpoint, stream: &str, records: u64) -> Result<f64, String> {
    let client = endpoint.bare();
    let iterator = client.get_shard_iterator().stream_name(stream).shard_id("shardId-000000000000");
    let iterator = iterator.shard_iterator_type("TRIM_HORIZON".into()).send().await;
    let mut next = iterator.map_err(|error| format!("{error:?}"))?.shard_iterator;
    let (_, bytes) = replies::parse(stream);
    let each = replies::read_records(bytes) as u64;
    let requests = records.div_ceil(each);
    let (mut before, mut sum) = (0, 0_u64);
    for request in 0..=requests {
        if request == 1 {
            before = cpu::spent_ns();
        }
        let get = client.get_records().set_shard_iterator(next.take()).limit(10_000);
        let reply = get.send().await.map_err(|error| format!("{error:?}"))?;
        sum += reply.records.iter().map(|record| record.data.as_ref().len() as u64).sum::<u64>();
        next = reply.next_shard_iterator;
    }
    std::hint::black_box(sum);
    Ok(per(cpu::spent_ns() - before, requests * each))
}
