//! CPU time per user record of the producer: 10,000 keys, aggregated, in strict order, compared
//! with a plain loop of `PutRecords`.

use crate::cpu;
use crate::endpoint::Endpoint;
use crate::floor;
use crate::table::{self, Rounds};
use anabranch::producer::{Bulk, BulkTicket, Outcome, Outcomes, Producer, Ticket};
use anabranch::stream::WireFormat;
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::PutRecordsRequestEntry;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::runtime::Runtime;

const KEYS: u64 = 10_000;
/// Each round runs all cases in turn, so that a busy moment of the machine affects all of them.
const ROUNDS: usize = 5;
/// Entries of one plain `PutRecords` request.
const BARE_BATCH: u64 = 500;

/// Name of the lower bound.
const FLOOR: &str = "CBOR, built containers, sent only";
/// Name of the lower bound with pauses.
const PAUSED: &str = "CBOR, built containers, with pauses";

/// A case of the producer.
struct Case {
    name: &'static str,
    format: WireFormat,
    bytes: usize,
    /// Maximum number of records without an outcome.
    outstanding: usize,
    puts: Puts,
    two_threads: bool,
    /// True if it is also measured over TLS.
    over_tls: bool,
}

/// Kind of put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Puts {
    /// Individual puts that share their data.
    Shared,
    /// Individual puts with separately allocated data, as in production.
    Own,
    /// Puts of bulks.
    Bulk,
}

/// Records per bulk.
const BULK: usize = 500;

impl Case {
    const fn new(
        name: &'static str,
        format: WireFormat,
        bytes: usize,
        outstanding: usize,
        puts: Puts,
    ) -> Self {
        Self { name, format, bytes, outstanding, puts, two_threads: false, over_tls: false }
    }

    /// Measures the case over TLS too.
    const fn over_tls(mut self) -> Self {
        self.over_tls = true;
        self
    }

    /// Runs puts and the driver on different threads, as in most services.
    const fn on_two_threads(mut self) -> Self {
        self.two_threads = true;
        self
    }
}

const CASES: [Case; 12] = [
    Case::new("CBOR, 100 B, 5,000 outstanding", WireFormat::Cbor, 100, 5_000, Puts::Shared)
        .over_tls(),
    Case::new("CBOR, 100 B, 500,000 outstanding", WireFormat::Cbor, 100, 500_000, Puts::Shared),
    Case::new("CBOR, 100 B each its own, 5,000", WireFormat::Cbor, 100, 5_000, Puts::Own),
    Case::new("CBOR, 100 B each its own, 500,000", WireFormat::Cbor, 100, 500_000, Puts::Own),
    Case::new("  on two threads", WireFormat::Cbor, 100, 500_000, Puts::Own).on_two_threads(),
    Case::new("CBOR, 100 B in bulks of 500, 5,000", WireFormat::Cbor, 100, 5_000, Puts::Bulk)
        .over_tls(),
    Case::new("CBOR, 100 B in bulks of 500, 500,000", WireFormat::Cbor, 100, 500_000, Puts::Bulk),
    Case::new("  of 500 on two threads", WireFormat::Cbor, 100, 500_000, Puts::Bulk)
        .on_two_threads(),
    Case::new("CBOR, 1 KiB, 5,000 outstanding", WireFormat::Cbor, 1024, 5_000, Puts::Shared)
        .over_tls(),
    Case::new("CBOR, 1 KiB, 100,000 outstanding", WireFormat::Cbor, 1024, 100_000, Puts::Shared),
    Case::new("JSON, 100 B, 5,000 outstanding", WireFormat::Json, 100, 5_000, Puts::Shared),
    Case::new("JSON, 1 KiB, 5,000 outstanding", WireFormat::Json, 1024, 5_000, Puts::Shared),
];

/// Runtimes with one and with two threads.
struct Runtimes {
    one: Runtime,
    two: Runtime,
}

impl Runtimes {
    fn start() -> std::io::Result<Self> {
        let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut two = tokio::runtime::Builder::new_multi_thread();
        Ok(Self { one, two: two.worker_threads(2).enable_all().build()? })
    }

    fn put(&self, endpoint: &Endpoint, case: &Case, records: u64) -> Result<f64, String> {
        let runtime = if case.two_threads { &self.two } else { &self.one };
        runtime.block_on(put(endpoint, case, scaled(records, case.bytes)))
    }
}

pub(crate) fn run(records: u64, only: Option<&&str>) -> Result<(), String> {
    let runtimes = Runtimes::start().map_err(|error| error.to_string())?;
    let runtime = &runtimes.one;
    let endpoint = Endpoint::start(0)?;
    let mut ours: Vec<Rounds> = CASES.iter().map(|_| Rounds::default()).collect();
    if only == Some(&"tls") {
        return over_tls(&runtimes, records);
    }
    if let Some(only) = only {
        for case in CASES.iter().filter(|case| case.name.contains(*only)) {
            let figure = runtimes.put(&endpoint, case, records)?;
            println!("{}: {figure:.0} ns", case.name);
        }
        if FLOOR.contains(*only) {
            let figure = runtime.block_on(floor::put(&endpoint, 100, records, None))?;
            println!("{FLOOR}: {figure:.0} ns");
        }
        if PAUSED.contains(*only) {
            let pause = Some(floor::PAUSE);
            let figure = runtime.block_on(floor::put(&endpoint, 100, records, pause))?;
            println!("{PAUSED}: {figure:.0} ns");
        }
        return Ok(());
    }
    let mut bare = [(100, Rounds::default()), (1024, Rounds::default())];
    let mut floors = [
        (FLOOR, 100, None, Rounds::default()),
        (PAUSED, 100, Some(floor::PAUSE), Rounds::default()),
        (FLOOR, 1024, None, Rounds::default()),
    ];
    for _ in 0..ROUNDS {
        for (case, rounds) in CASES.iter().zip(&mut ours) {
            rounds.add(runtimes.put(&endpoint, case, records)?);
        }
        for (bytes, rounds) in &mut bare {
            rounds.add(runtime.block_on(put_bare(
                &endpoint,
                *bytes,
                scaled(records, *bytes) / 4,
            ))?);
        }
        for (_, bytes, pause, rounds) in &mut floors {
            let records = scaled(records, *bytes);
            rounds.add(runtime.block_on(floor::put(&endpoint, *bytes, records, *pause))?);
        }
    }
    table::head("CPU per user record");
    for (case, rounds) in CASES.iter().zip(&ours) {
        let beside = if case.bytes == 100 { &bare[0].1 } else { &bare[1].1 };
        table::row(case.name, rounds, beside);
    }
    for (name, bytes, _, rounds) in &floors {
        let beside = if *bytes == 100 { &bare[0].1 } else { &bare[1].1 };
        table::row(&format!("{name}, {bytes} B"), rounds, beside);
    }
    for (bytes, beside) in &bare {
        match aiokpl(&endpoint, *bytes) {
            Ok(Some(figure)) => {
                let mut rounds = Rounds::default();
                rounds.add(figure);
                table::row(&format!("aiokpl 0.2.0, JSON, {bytes} B (one round)"), &rounds, beside);
            }
            Ok(None) => {}
            Err(why) => println!("left out: {why}"),
        }
    }
    for (bytes, rounds) in &bare {
        table::row(&format!("bare PutRecords of 500, JSON, {bytes} B"), rounds, rounds);
    }
    over_tls(&runtimes, records)
}

/// Measures over TLS with HTTP/2, as in production.
fn over_tls(runtimes: &Runtimes, records: u64) -> Result<(), String> {
    let endpoint = Endpoint::start_tls()?;
    let cases = || CASES.iter().filter(|case| case.over_tls);
    let mut ours: Vec<(Rounds, u64)> = cases().map(|_| (Rounds::default(), 0)).collect();
    let mut bare = [(100, Rounds::default()), (1024, Rounds::default())];
    for _ in 0..ROUNDS {
        for (case, (rounds, connections)) in cases().zip(&mut ours) {
            rounds.add(runtimes.put(&endpoint, case, records)?);
            *connections = endpoint.connections().max(*connections);
        }
        for (bytes, rounds) in &mut bare {
            let records = scaled(records, *bytes) / 4;
            rounds.add(runtimes.one.block_on(put_bare(&endpoint, *bytes, records))?);
        }
    }
    table::head("CPU per user record, over TLS and HTTP/2");
    for (case, (rounds, connections)) in cases().zip(&ours) {
        let beside = if case.bytes == 100 { &bare[0].1 } else { &bare[1].1 };
        table::row(case.name, rounds, beside);
        println!("  connections: {connections}");
    }
    for (bytes, rounds) in &bare {
        table::row(&format!("bare PutRecords of 500, JSON, {bytes} B"), rounds, rounds);
    }
    Ok(())
}

/// Returns a quarter of `records` for large records.
fn scaled(records: u64, bytes: usize) -> u64 {
    if bytes > 100 { records / 4 } else { records }
}

/// Puts records with a window of outstanding tickets. Returns the CPU time per record in
/// nanoseconds.
async fn put(endpoint: &Endpoint, case: &Case, records: u64) -> Result<f64, String> {
    let producer = Producer::new("s")
        .with_buffer_bytes(512 << 20)
        .with_rate_percent(1_000)
        .with_kinesis(endpoint.ours(case.format))
        .start()
        .await
        .map_err(|error| error.to_string())?;
    // Warm-up: opens connections and reads the shard map.
    window(&producer, case, records / 10).await?;
    let before = cpu::spent_ns();
    window(&producer, case, records).await?;
    let spent = cpu::spent_ns() - before;
    let account = producer.close(Duration::from_secs(30)).await;
    if !account.is_complete() {
        return Err(format!("{}: {account:?}", case.name));
    }
    Ok(per(spent, records))
}

pub(crate) fn keys() -> Vec<String> {
    (0..KEYS).map(|key| format!("key-{key:06}")).collect()
}

async fn window(producer: &Producer, case: &Case, records: u64) -> Result<(), String> {
    if case.puts == Puts::Bulk {
        return window_of_bulks(producer, case, records).await;
    }
    let (keys, data) = (keys(), Bytes::from(vec![b'x'; case.bytes]));
    let mut tickets: VecDeque<Ticket> = VecDeque::with_capacity(case.outstanding);
    for key in keys.iter().cycle().take(usize::try_from(records).unwrap_or(usize::MAX)) {
        let data =
            if case.puts == Puts::Own { Bytes::copy_from_slice(&data) } else { data.clone() };
        let ticket = producer.put(key.as_str(), data).await;
        tickets.push_back(ticket.map_err(|error| error.to_string())?);
        if tickets.len() >= case.outstanding
            && let Some(oldest) = tickets.pop_front()
        {
            placed(&oldest.await)?;
        }
    }
    producer.flush().await;
    for ticket in tickets {
        placed(&ticket.await)?;
    }
    Ok(())
}

async fn window_of_bulks(producer: &Producer, case: &Case, records: u64) -> Result<(), String> {
    let (keys, data) = (keys(), vec![b'x'; case.bytes]);
    let mut keys = keys.iter().cycle();
    let mut tickets: VecDeque<BulkTicket> = VecDeque::new();
    for _ in 0..usize::try_from(records).unwrap_or(usize::MAX).div_ceil(BULK) {
        let mut bulk = Bulk::with_capacity(BULK, BULK * (case.bytes + 10));
        keys.by_ref().take(BULK).for_each(|key| bulk.push(key, &data));
        let ticket = producer.put_bulk(bulk).await;
        tickets.push_back(ticket.map_err(|error| error.to_string())?);
        if tickets.len() * BULK >= case.outstanding
            && let Some(oldest) = tickets.pop_front()
        {
            all_placed(&oldest.await)?;
        }
    }
    producer.flush().await;
    for ticket in tickets {
        all_placed(&ticket.await)?;
    }
    Ok(())
}

fn all_placed(outcomes: &Outcomes) -> Result<(), String> {
    if outcomes.all_placed() {
        return Ok(());
    }
    outcomes.iter().try_for_each(|outcome| placed(&outcome))
}

fn placed(outcome: &Outcome) -> Result<(), String> {
    if outcome.is_placed() { Ok(()) } else { Err(format!("a record was not placed: {outcome:?}")) }
}

/// Puts records with the SDK alone, 500 per request, one request after the other.
async fn put_bare(endpoint: &Endpoint, bytes: usize, records: u64) -> Result<f64, String> {
    let client = endpoint.bare();
    let (keys, data) = (keys(), Bytes::from(vec![b'x'; bytes]));
    let mut keys = keys.iter().cycle();
    let mut before = 0;
    let requests = records.div_ceil(BARE_BATCH);
    for request in 0..=requests {
        if request == 1 {
            before = cpu::spent_ns();
        }
        let entries = keys.by_ref().take(500).map(|key| {
            let entry = PutRecordsRequestEntry::builder().partition_key(key.as_str());
            let entry = entry.data(Blob::from_maybe_shared(data.clone())).build();
            entry.expect("an entry needs its data only, which are set")
        });
        let put = client.put_records().stream_name("s").set_records(Some(entries.collect()));
        let reply = put.send().await.map_err(|error| format!("{error:?}"))?;
        if reply.records.len() != 500 {
            return Err(format!("the sink answered {} of 500", reply.records.len()));
        }
    }
    Ok(per(cpu::spent_ns() - before, requests * BARE_BATCH))
}

/// Measures aiokpl, if a Python interpreter that has it is configured. Returns nanoseconds per
/// record.
fn aiokpl(endpoint: &Endpoint, bytes: usize) -> Result<Option<f64>, String> {
    let Some(python) = std::env::var_os("ANABRANCH_AGGREGATES_PYTHON") else { return Ok(None) };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/aggregates/aiokpl_speed.py");
    let mut command = std::process::Command::new(python);
    let command = command.arg(script).args([&endpoint.url(), "20000", &bytes.to_string()]);
    let output = command.output().map_err(|error| format!("aiokpl did not start: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let figure = printed.parse().map_err(|_| {
        format!("aiokpl printed {printed:?}: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(Some(figure))
}

#[expect(clippy::cast_precision_loss, reason = "figures of a benchmark")]
pub(crate) fn per(spent_ns: u64, records: u64) -> f64 {
    spent_ns as f64 / records as f64
}
