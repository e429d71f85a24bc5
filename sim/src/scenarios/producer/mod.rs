//! Producer scenario: producers on a stream that is split, merged and recreated, behind a faulty
//! network.

mod stream_contents;

use super::SeedReport;
use crate::checkers::Violation;
use crate::checkers::producer;
use crate::checkers::producer::StreamContents;
use crate::faults::network::Service;
use crate::faults::{CallFaultRates, DenialSchedule, FaultKind, FaultyStream, HostFaultRates};
use crate::flaw::producer::FlawedProducerStream;
pub use crate::flaw::producer::ProducerFlaw;
use crate::history::{HistoryEvent, HostId};
use crate::host::{HostContext, HostRun, HostStart};
use crate::ledger::{PutLedger, RecordName};
use crate::workload::{ReshardChange, STREAM, Workload};
use crate::world::{World, WorldSetup};
use anabranch::clock::{self, Clock};
use anabranch::event::Events;
use anabranch::producer::{
    Aggregation, BulkTicket, KeyOrder, NewRecord, OnFailure, Outcome, Producer, ProducerBuilder,
    RejectReason, Ticket,
};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::{Operation, StreamTarget, create_stream, delete_stream};
use anabranch_model::hash::HashKey;
use fastrand::Rng;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use stream_contents::read;

/// Duration of the fault phase and of the quiet phase, after which everything has its outcome.
const FAULTS_MS: u64 = 40_000;
const QUIET_MS: u64 = 60_000;
/// Timeout of a call, in milliseconds.
const PATIENCE_MS: u64 = 800;
/// Approximate duration of half of the freezes and cuts, in milliseconds.
const BLOW_MS: u64 = 2_000;
/// Minimum time between the deletion and the recreation of a stream, in milliseconds. No producer
/// may take the new stream for the old one: the shard map is in doubt after a shorter time without
/// an answer, even by a slow clock.
const GONE_MIN_MS: u64 = MAP_IDLE_MS / 4;
/// Time without a reply from the stream after which its shard map is dropped, in milliseconds.
const MAP_IDLE_MS: u64 = 4_000;
/// Number of keys of one producer.
const KEYS: u64 = 8;
/// Buffer limit of a producer, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Buffered size of a record in addition to its key and data, as documented in the producer's
/// options.
const RECORD_OVERHEAD_BYTES: usize = 256;
/// Maximum size of a record, in bytes of data.
const DATA_MAX: usize = 900;

/// Producer options drawn for one seed.
#[derive(Clone, Copy, Debug)]
struct ProducerKind {
    aggregation: Aggregation,
    numbered: bool,
    deadline_ms: Option<u64>,
    marks: bool,
    wrong: ProducerFlaw,
}

/// Runs one seed: a phase with faults, then a quiet one.
pub fn run(seed: u64, wrong: ProducerFlaw) -> SeedReport {
    let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7075_7473);
    let ground = WorldSetup::new(seed);
    let workload = Workload::new(rng.u32(1..=4));
    let kinds = [Aggregation::ByShard, Aggregation::ByShard, Aggregation::ByKey, Aggregation::Off];
    let kind = ProducerKind {
        aggregation: kinds[rng.usize(0..kinds.len())],
        numbered: wrong == ProducerFlaw::None && rng.u32(0..6) == 0,
        deadline_ms: (rng.u32(0..4) == 0 || wrong.needs_deadline()).then(|| rng.u64(500..5_000)),
        marks: seed.is_multiple_of(3),
        wrong,
    };
    ground.history.note_world(format!("{kind:?}"));
    let ledger = PutLedger::default();
    let hosts = rng.usize(1..=2);
    let boot = boot(&ground, &workload, &ledger, kind);
    let world = World::new(seed, ground.clone(), hosts, boot);
    let mut stage =
        ProducerScenario { ground, workload, ledger, world, past: StreamContents::default() };
    let mishap = stage.run(&mut rng).err();
    stage.judge(seed, mishap)
}

struct ProducerScenario {
    ground: WorldSetup,
    workload: Workload,
    ledger: PutLedger,
    world: World,
    /// Contents of the streams that were deleted.
    past: StreamContents,
}

impl ProducerScenario {
    fn run(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.ground.network.set_weather(Service::Stream, CallFaultRates::random(rng));
        self.world.set_chaos(HostFaultRates {
            outage_every_ms: None,
            ..HostFaultRates::random(rng, BLOW_MS)
        });
        for (effect, most) in [(FaultEffect::ThrottleEntries, 0.3), (FaultEffect::FailEntries, 0.1)]
        {
            if rng.bool() {
                self.strike(effect, rng.f64() * most);
            }
        }
        let reshard_ms = rng.bool().then(|| rng.u64(500..8_000));
        let recreate_ms = (rng.u32(0..4) == 0).then(|| rng.u64(8_000..30_000));
        let (workload, ground) = (self.workload.clone(), self.ground.clone());
        let mut gone_until = None;
        let mut denials = DenialSchedule::drawn(rng.fork());
        let past = &mut self.past;
        self.world.run(FAULTS_MS, |world, step_ms| {
            workload.advance(step_ms);
            let now_ms = world.now_ms();
            if let Some(change) = denials.step(workload.api().engine().faults(), now_ms) {
                ground.network.count(FaultKind::Denied);
                ground.history.note_world(change);
            }
            match gone_until {
                Some(until_ms) if now_ms >= until_ms => {
                    create(&workload, world.rng().i64(1..=4));
                    ground.history.note_world("the stream is made anew");
                    gone_until = None;
                }
                None if hits(world, recreate_ms, step_ms) => {
                    read(&workload, past);
                    delete(&workload);
                    ground.history.note_world("the stream is deleted");
                    gone_until = Some(now_ms + world.rng().u64(GONE_MIN_MS..6_000));
                }
                None if hits(world, reshard_ms, step_ms) => {
                    if let Some(change) = workload.reshard(world.rng()) {
                        ground.network.count(match change {
                            ReshardChange::Split(_) => FaultKind::Split,
                            ReshardChange::Merge(..) => FaultKind::Merge,
                        });
                        ground.history.note_world(format!("{change:?}"));
                    }
                }
                _ => {}
            }
        })?;
        if gone_until.is_some() {
            create(&self.workload, 2);
        }
        self.workload.api().engine().faults().clear();
        self.world.stop_faults(None);
        let workload = self.workload.clone();
        self.world.run(QUIET_MS, |_, step_ms| workload.advance(step_ms))
    }

    fn strike(&self, effect: FaultEffect, probability: f64) {
        self.workload.api().engine().faults().add(FaultRule {
            operation: Some(Operation::PutRecords),
            stream: None,
            shard: None,
            probability,
            skip: 0,
            count: None,
            effect,
        });
    }

    fn judge(mut self, seed: u64, mishap: Option<String>) -> SeedReport {
        read(&self.workload, &mut self.past);
        let (lines, ledger) = (self.ground.history.take(), self.ledger.take());
        let line = lines.len().saturating_sub(1);
        let panicked = mishap.map(|words| {
            let promise = "nothing panics, and buffers keep their bounds";
            Violation { promise, words, line, lease: None }
        });
        let violation = panicked.or_else(|| producer::check(&ledger, &self.past, line));
        let placed = ledger
            .values()
            .filter(|entry| matches!(entry.outcomes.first(), Some(Outcome::Placed { .. })));
        SeedReport {
            seed,
            replay: format!("cargo xtask sim --producer --seed {seed}"),
            violation,
            virtual_ms: self.world.now_ms(),
            faults: self.ground.network.counts(),
            drawn: Vec::new(),
            moves: 0,
            placed: placed.count() as u64,
            deliveries: self.past.delivered.len() as u64,
            lines,
        }
    }
}

fn hits(world: &mut World, every_ms: Option<u64>, step_ms: u64) -> bool {
    every_ms.is_some_and(|every_ms| world.rng().u64(0..every_ms) < step_ms)
}

fn create(workload: &Workload, shards: i64) {
    let request = create_stream::Request {
        stream_name: Some(STREAM.to_owned()),
        shard_count: Some(shards),
        ..Default::default()
    };
    let made = workload.api().engine().create_stream(&request);
    debug_assert_eq!(made, Ok(()), "there is no stream of that name");
}

fn delete(workload: &Workload) {
    let stream = StreamTarget::named(STREAM);
    let request = delete_stream::Request { stream, ..Default::default() };
    let gone = workload.api().engine().delete_stream(&request);
    debug_assert_eq!(gone, Ok(()), "the stream is there");
}

fn boot(
    ground: &WorldSetup,
    workload: &Workload,
    ledger: &PutLedger,
    kind: ProducerKind,
) -> HostStart {
    let (ground, workload, ledger) = (ground.clone(), workload.clone(), ledger.clone());
    Box::new(move |berth: HostContext| -> HostRun {
        Box::pin(live(berth, ground.clone(), workload.clone(), ledger.clone(), kind))
    })
}

fn builder(kind: ProducerKind, chance: clock::Rng, events: Events) -> ProducerBuilder {
    let ms = Duration::from_millis;
    let builder = Producer::new(STREAM)
        .with_aggregation(kind.aggregation)
        .with_ordering_numbers(kind.numbered)
        .with_dedup_tags(kind.marks)
        .with_buffer_bytes(BUFFER_BYTES)
        .with_aggregate_bytes(400..=2_000)
        .with_linger(ms(5))
        .with_backoff(ms(10)..=ms(400))
        .with_refusal_backoff(ms(50)..=ms(1_000))
        .with_request_timeout(ms(PATIENCE_MS * 2))
        .with_verify_timeout(ms(1_500))
        .with_shard_map_idle_timeout(ms(MAP_IDLE_MS))
        .with_start_timeout(ms(20_000))
        .with_clock(Clock::of_runtime())
        .with_rng(chance)
        .with_events(events);
    let builder = match kind.deadline_ms {
        Some(deadline_ms) => builder.with_deadline(ms(deadline_ms)),
        None => builder,
    };
    match kind.wrong {
        ProducerFlaw::NoOrder => builder.with_order(KeyOrder::None),
        ProducerFlaw::GoOn => builder.with_on_failure(OnFailure::Continue),
        _ => builder,
    }
}

/// Runs one producer, and puts records until faults are over or the host is stopped.
async fn live(
    mut berth: HostContext,
    ground: WorldSetup,
    workload: Workload,
    ledger: PutLedger,
    kind: ProducerKind,
) {
    let host = berth.host;
    // Keys belong to one run: there is no order relative to another producer.
    let prefix = format!("{host}-{}-", berth.life);
    if berth.life > 1 {
        ledger.producer_died(&format!("{host}-{}-", berth.life - 1));
    }
    let history = ground.history.clone();
    let events =
        Events::new(move |event| history.note(host, HistoryEvent::LibraryReported(event.clone())));
    let link = ground.network.link(host, Service::Stream, PATIENCE_MS);
    let api = FaultyStream::new(Arc::new(workload.api().clone()), link);
    let api = FlawedProducerStream::new(api, kind.wrong);
    let start = builder(kind, clock::Rng::seeded(berth.seed), events).with_kinesis(api).start();
    let started = tokio::select! {
        biased;
        _ = berth.stop.wait_for(|stop| *stop) => return,
        started = start => started,
    };
    let producer = match started {
        Ok(producer) => producer,
        Err(error) => return ground.history.note_world(format!("{host} can't start: {error}")),
    };
    let rng = Rng::with_seed(berth.seed ^ 0x6b65_7973);
    // Uses its own RNG, so that a seed's other choices do not depend on it.
    let bulks = Rng::with_seed(berth.seed ^ 0x6275_6c6b);
    let (open, accepted) = (Vec::new(), 0);
    // A deadline gives up records for any reason.
    let waits = kind.deadline_ms.is_none();
    let wrong = kind.wrong;
    let mut desk =
        ProducerRun { host, prefix, producer, ledger, rng, bulks, open, accepted, waits, wrong };
    desk.work(&mut berth, &ground).await;
    desk.waits = false;
    let account = desk.producer.close(Duration::from_secs(3)).await;
    ground.history.note_world(format!("{host} closes: {account:?}"));
    let counted = account.placed + account.rejected + account.unknown;
    assert_eq!(counted, desk.accepted, "{host}: the account does not cover what was accepted");
    desk.collect();
}

/// A record without an outcome.
struct OpenPut {
    /// Number of its key.
    key: u64,
    name: RecordName,
    ticket: OutcomeSource,
}

/// Source of an outcome.
enum OutcomeSource {
    /// A ticket of its own, and the buffered size of the record in bytes.
    Alone(Ticket, usize),
    /// The ticket of a bulk, and the index in it. Its outcomes are published together, so the
    /// buffered size of one record is unknown.
    Bulk(Arc<BulkTicket>, usize),
}

impl OutcomeSource {
    fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Alone(ticket, _) => ticket.try_outcome(),
            Self::Bulk(ticket, at) => ticket.try_outcomes()?.get(*at),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Alone(_, bytes) => *bytes,
            Self::Bulk(..) => 0,
        }
    }
}

/// State of one producer run.
struct ProducerRun {
    host: HostId,
    /// Prefix of its keys.
    prefix: String,
    producer: Producer,
    ledger: PutLedger,
    rng: Rng,
    /// Decides which records are put together.
    bulks: Rng,
    /// Records without an outcome.
    open: Vec<OpenPut>,
    /// Number of records that were accepted.
    accepted: u64,
    /// True if no record may be given up because the stream refuses the caller.
    waits: bool,
    /// The broken rule.
    wrong: ProducerFlaw,
}

impl ProducerRun {
    async fn work(&mut self, berth: &mut HostContext, ground: &WorldSetup) {
        let mut keys: Vec<(u64, u64)> = (0..KEYS).map(|key| (key, 0)).collect();
        while ground.clock.now_ms() < FAULTS_MS {
            let count = self.rng.u32(1..6);
            let (rounds, together) =
                if self.bulks.u32(0..3) == 0 { (1, count) } else { (count, 1) };
            for _ in 0..rounds {
                let put = self.put(&mut keys, together);
                tokio::select! {
                    biased;
                    _ = berth.stop.wait_for(|stop| *stop) => return,
                    put = put => if put.is_break() { return },
                }
                // A stopped key is replaced by a new one.
                for stopped in self.collect() {
                    if let Some(key) = keys.iter_mut().find(|key| key.0 == stopped) {
                        *key = (stopped + 1_000, 0);
                    }
                }
            }
            let pause = Duration::from_millis(self.rng.u64(1..80));
            tokio::select! {
                biased;
                _ = berth.stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.producer.flush().await;
        self.collect();
        // It stays until the host is stopped, or the world ends.
        let _ = berth.stop.wait_for(|stop| *stop).await;
    }

    /// Puts the next records of some keys: one by itself, or several in a bulk.
    async fn put(&mut self, keys: &mut [(u64, u64)], together: u32) -> ControlFlow<()> {
        let mut records = Vec::new();
        for _ in 0..together {
            let key = self.rng.usize(0..keys.len());
            let key = &mut keys[key];
            records.push((key.0, self.next(key)));
        }
        let accepted = if together == 1 {
            let (key, (name, record)) = records.remove(0);
            let bytes = name.0.len() + record.data_len() + RECORD_OVERHEAD_BYTES;
            self.producer
                .put_record(record)
                .await
                .map(|ticket| {
                    vec![OpenPut { key, name, ticket: OutcomeSource::Alone(ticket, bytes) }]
                })
                .ok()
        } else {
            let bulk = records.iter().map(|(_, (_, record))| record.clone()).collect();
            self.producer.put_bulk(bulk).await.ok().map(|ticket| {
                let ticket = Arc::new(ticket);
                let held = |at| OutcomeSource::Bulk(Arc::clone(&ticket), at);
                let records = records.into_iter().enumerate();
                let open =
                    records.map(|(at, (key, (name, _)))| OpenPut { key, name, ticket: held(at) });
                open.collect()
            })
        };
        let Some(accepted) = accepted else { return ControlFlow::Break(()) };
        for open in accepted {
            self.accepted += 1;
            self.ledger.accepted(open.name.clone());
            self.open.push(open);
        }
        ControlFlow::Continue(())
    }

    /// Creates the next record of a key.
    fn next(&mut self, key: &mut (u64, u64)) -> (RecordName, NewRecord) {
        let number = key.1;
        key.1 += 1;
        let name = (format!("{}{}", self.prefix, key.0), number);
        let pad = "x".repeat(self.rng.usize(0..DATA_MAX));
        let record = NewRecord::new(name.0.clone(), format!("{}:{number}:{pad}", name.0));
        if key.0 % 4 == 3 {
            let hash = HashKey(u128::MAX / 7 * u128::from(key.0 % 7));
            return (name, record.with_explicit_hash_key(hash));
        }
        (name, record)
    }

    /// Records the outcomes that have arrived. Returns the keys of records that were not placed.
    fn collect(&mut self) -> Vec<u64> {
        let mut stopped = Vec::new();
        self.open.retain(|open| {
            let Some(outcome) = open.ticket.outcome() else { return true };
            if !outcome.is_placed() {
                stopped.push(open.key);
            }
            if let Outcome::Rejected { why: RejectReason::Refused { fault, detail }, .. } = &outcome
            {
                let given_up = self.waits && fault.refuses_caller();
                assert!(!given_up, "{:?} was given up: {detail}", open.name);
            }
            if self.wrong == ProducerFlaw::CompletesTwice {
                self.ledger.settled(&open.name, outcome.clone());
            }
            self.ledger.settled(&open.name, outcome);
            false
        });
        let held: usize = self.open.iter().map(|open| open.ticket.bytes()).sum();
        assert!(held <= BUFFER_BYTES, "{} holds {held} bytes of {BUFFER_BYTES}", self.host);
        // A lower bound of the bytes held, which covers bulks too.
        let least = self.producer.stats().pending * RECORD_OVERHEAD_BYTES as u64;
        assert!(least <= BUFFER_BYTES as u64, "{} holds at least {least} bytes", self.host);
        stopped
    }
}
