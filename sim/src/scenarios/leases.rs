//! Lease scenario: real coordinators over a memory store behind the network, with simulated
//! readers.

use super::report::SeedReport;
use crate::checkers::{self, QuietPhase, Violation, liveness};
use crate::faults::network::Service;
use crate::faults::{
    CallFaultRates, FaultKind, FaultyStore, FaultyStream, HostFaultRates, LeaseTimes,
};
use crate::flaw::{FlawedRulesStore, FlawedWorkerStore, LeaseFlaw, WorkerFlaws};
use crate::history::{HistoryEvent, HistoryLine, HostId};
use crate::host::{HostContext, HostRun, HostStart};
use crate::reader::{ReaderContext, read};
use crate::workload::{ReshardChange, STREAM, Workload};
use crate::world::{World, WorldSetup};
use anabranch::clock::{self, Clock};
use anabranch::event::Events;
use anabranch::lease::{Coordinator, CoordinatorSettings, MemoryStore};
use anabranch::stream::LocalKinesis;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Layout, Lease, LeaseChange, LeaseKey, Write, WriteOutcome};
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::position::StartPosition;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Shortest lease time of every fleet, in milliseconds.
const LEASE_TIME_MS: u64 = 4_000;

/// Timeout of a call to a service, in milliseconds.
const PATIENCE_MS: u64 = 1_000;

/// Duration of the faults, in milliseconds.
const FAULTS_MS: u64 = 90_000;

/// Time after which no packet from the fault phase is in flight any more, in milliseconds.
const SETTLE_MS: u64 = PATIENCE_MS * 14;

/// Interval in which every shard must be delivered, before each deadline of the quiet phase.
const STRETCH_MS: u64 = 1_500;

/// Deadline for level load after the last fault, in lease times.
const LEVEL: u64 = 6;

/// Deadline for delivery of everything in KCL's layout after the last fault, in lease times. A
/// lease may be passed to a worker that crashed just after it asked, and is then watched for one
/// more.
const KCL_OWNED: u64 = 4;

/// Grace period of a stop, in milliseconds.
const GRACE_MS: u64 = 3_000;

type LeaseScenarioStore = FlawedWorkerStore<FaultyStore<FlawedRulesStore>>;
type LeaseScenarioApi = FaultyStream<LocalKinesis>;

/// Runs one seed: a phase with faults, then a quiet one. With a flaw, only the phase with faults.
pub fn run(seed: u64, layout: Layout, flaw: LeaseFlaw) -> SeedReport {
    let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let ground = WorldSetup::new(seed);
    let workload = Workload::new(rng.u32(1..=8));
    let rows = Arc::new(FlawedRulesStore::new(MemoryStore::with_layout(layout), flaw));
    let lease_times = match flaw {
        LeaseFlaw::None | LeaseFlaw::UsesOwnLeaseTime => LeaseTimes::drawn(seed, LEASE_TIME_MS),
        _ => LeaseTimes::same(LEASE_TIME_MS),
    };
    let boot = boot(&ground, &workload, &rows, flaw, lease_times);
    let mut world = World::new(seed, ground.clone(), rng.usize(2..=4), boot);
    let store = CallFaultRates::random(&mut rng)
        .with_repeats(seed)
        .with_slow_commits(seed)
        .with_old_scans(seed);
    let store = store.with_unreadable_rows(seed);
    ground.network.set_weather(Service::Store, store.with_refusals(seed, Service::Store));
    let stream = CallFaultRates::random(&mut rng).with_refusals(seed, Service::Stream);
    ground.network.set_weather(Service::Stream, stream);
    let chaos = HostFaultRates::random_with_stream(&mut rng, LEASE_TIME_MS)
        .with_lone_cuts(seed, LEASE_TIME_MS);
    world.set_chaos(chaos.with_pauses(seed, LEASE_TIME_MS).with_refusals(seed, LEASE_TIME_MS));
    // Some fleets start during an outage of the stream.
    if rng.u32(0..4) == 0 {
        ground.network.outage(Service::Stream, rng.u64(1..LEASE_TIME_MS * 3));
    }
    let reshard_every_ms = rng.bool().then(|| rng.u64(5_000..30_000));

    let mut stage =
        LeaseScenario { layout, ground, workload, rows, lease_times, world, reshard_every_ms };
    let mishap = stage.faults().err();
    let quiet =
        if flaw == LeaseFlaw::None && mishap.is_none() { stage.quiet() } else { Ok(Vec::new()) };
    stage.judge(seed, mishap, quiet)
}

struct LeaseScenario {
    layout: Layout,
    ground: WorldSetup,
    workload: Workload,
    rows: Arc<FlawedRulesStore>,
    lease_times: LeaseTimes,
    world: World,
    /// Interval between reshards while faults last, in milliseconds.
    reshard_every_ms: Option<u64>,
}

impl LeaseScenario {
    fn faults(&mut self) -> Result<(), String> {
        let (workload, ground) = (self.workload.clone(), self.ground.clone());
        let every = self.reshard_every_ms;
        self.world.run(FAULTS_MS, |world, step_ms| {
            workload.advance(step_ms);
            let due = every.is_some_and(|every| world.rng().u64(0..every) < step_ms);
            if let Some(change) = due.then(|| workload.reshard(world.rng())).flatten() {
                let fault = match change {
                    ReshardChange::Split(_) => FaultKind::Split,
                    ReshardChange::Merge(..) => FaultKind::Merge,
                };
                ground.network.count(fault);
                ground.history.note_world(format!("{change:?}"));
            }
        })
    }

    /// Runs the quiet phase. Returns the expected states at two moments: soon everything is
    /// delivered, and later load is level.
    fn quiet(&mut self) -> Result<Vec<QuietPhase>, String> {
        self.world.stop_faults(None);
        self.run(SETTLE_MS)?;
        let dead = self.world.rng().bool().then_some(HostId(0));
        self.world.stop_faults(dead);
        let longest_ms = self.lease_times.longest_ms();
        if self.layout == Layout::Kcl {
            // KCL counts finished leases too, so load need not be level.
            self.run(longest_ms * KCL_OWNED - STRETCH_MS)?;
            return Ok(vec![self.stretch(false)?]);
        }
        self.run(longest_ms * 2 - STRETCH_MS)?;
        let owned = self.stretch(false)?;
        self.run(longest_ms * LEVEL)?;
        let level = self.stretch(true)?;
        Ok(vec![owned, level])
    }

    fn run(&mut self, for_ms: u64) -> Result<(), String> {
        let workload = self.workload.clone();
        self.world.run(for_ms, |_, step_ms| workload.advance(step_ms))
    }

    fn stretch(&mut self, level: bool) -> Result<QuietPhase, String> {
        let from_ms = self.world.now_ms();
        let rows = self.leases();
        let (before, done) = (ready(&rows), self.done(&rows));
        self.run(STRETCH_MS)?;
        let after = ready(&self.leases());
        // A finished shard has nothing left to deliver; its row must say so.
        let (ready, stuck) =
            before.intersection(&after).cloned().partition(|key| !done.contains_key(key));
        let mut stuck: BTreeSet<LeaseKey> = stuck;
        stuck.retain(|key| done.get(key) != Some(&EndWait::ForAnotherRow));
        let hosts = self.world.up().collect();
        Ok(QuietPhase { from_ms, until_ms: self.world.now_ms(), ready, stuck, hosts, level })
    }

    /// Returns the leases of which everything was delivered, and whether their ends have to wait.
    fn done(&self, rows: &[Lease]) -> BTreeMap<LeaseKey, EndWait> {
        let unfinished = rows.iter().filter(|row| !row.is_ended());
        let done = unfinished.filter(|row| !self.workload.has_more(&row.key.shard));
        done.map(|row| (row.key.clone(), self.end_waits(&row.key.shard, rows))).collect()
    }

    /// Returns what the end of a shard waits for. In KCL's layout the row of a merged shard may not
    /// be created before those of both its parents. So one parent delays its end until the other
    /// has a row, which takes as long as the ancestors of that one do.
    fn end_waits(&self, shard: &ShardId, rows: &[Lease]) -> EndWait {
        let row = |shard: &ShardId| rows.iter().find(|row| row.key.shard == *shard);
        let is_coming = |lineage: &Lineage, other: &ShardId| {
            let mut before = lineage.ancestors(other).into_iter().filter_map(row);
            row(other).is_none() && before.any(|ancestor| !ancestor.is_ended())
        };
        let lineage = Lineage::new(self.workload.listed(&StreamName::from(STREAM)));
        let children = lineage.children(shard).iter().filter_map(|child| lineage.get(child));
        let mut parents = children.flat_map(Shard::parents);
        if self.layout == Layout::Kcl && parents.any(|other| is_coming(&lineage, other)) {
            EndWait::ForAnotherRow
        } else {
            EndWait::ForNothing
        }
    }

    fn leases(&self) -> Vec<Lease> {
        self.rows.leases(&StreamName::from(STREAM))
    }

    fn judge(
        self,
        seed: u64,
        mishap: Option<String>,
        quiet: Result<Vec<QuietPhase>, String>,
    ) -> SeedReport {
        let lines = self.ground.history.take();
        let (quiet, later) = match quiet {
            Ok(quiet) => (quiet, None),
            Err(mishap) => (Vec::new(), Some(mishap)),
        };
        let panicked = mishap.or(later).map(|words| Violation {
            promise: "nothing panics",
            words,
            line: lines.len().saturating_sub(1),
            lease: None,
        });
        let violation = panicked
            .or_else(|| checkers::always(&lines, self.layout, self.lease_times.longest_ms()))
            .or_else(|| quiet.iter().find_map(|quiet| liveness::check(&lines, quiet)));
        let deliveries = count(&lines, |what| matches!(what, HistoryEvent::Delivered { .. }));
        SeedReport {
            seed,
            replay: match self.layout {
                Layout::Native => format!("cargo xtask sim --seed {seed}"),
                Layout::Kcl => format!("cargo xtask sim --kcl2 --seed {seed}"),
            },
            violation,
            virtual_ms: self.world.now_ms(),
            faults: self.ground.network.counts(),
            drawn: Vec::new(),
            moves: count(&lines, is_move),
            placed: 0,
            deliveries,
            lines,
        }
    }
}

/// Condition for which the end of a fully delivered shard waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndWait {
    ForNothing,
    /// The row of the other parent of a merged shard, which has not been created yet.
    ForAnotherRow,
}

fn count(lines: &[HistoryLine], is: impl Fn(&HistoryEvent) -> bool) -> u64 {
    lines.iter().filter(|line| is(&line.what)).count() as u64
}

fn is_move(what: &HistoryEvent) -> bool {
    let HistoryEvent::WriteApplied {
        write: Write::Lease { change, .. },
        outcome: WriteOutcome::Done(_),
    } = what
    else {
        return false;
    };
    matches!(change, LeaseChange::Take { .. } | LeaseChange::HandOver { .. })
}

/// Returns the leases that can be delivered: unfinished, with every parent that has a row at its
/// end.
fn ready(leases: &[Lease]) -> BTreeSet<LeaseKey> {
    let ended: BTreeMap<_, _> =
        leases.iter().map(|lease| (&lease.key.shard, lease.is_ended())).collect();
    let is_ready = |lease: &&Lease| {
        let parents_done = lease.parents.iter().all(|id| ended.get(id).copied().unwrap_or(true));
        !lease.is_ended() && parents_done
    };
    leases.iter().filter(is_ready).map(|lease| lease.key.clone()).collect()
}

fn boot(
    ground: &WorldSetup,
    workload: &Workload,
    rows: &Arc<FlawedRulesStore>,
    flaw: LeaseFlaw,
    lease_times: LeaseTimes,
) -> HostStart {
    let (ground, workload, rows) = (ground.clone(), workload.clone(), Arc::clone(rows));
    Box::new(move |berth: HostContext| -> HostRun {
        let settings = settings(berth.host, lease_times.of_life(berth.seed));
        if settings.lease_time_ms != LEASE_TIME_MS {
            ground.network.count(FaultKind::LeaseTime);
            let words = format!("{} has a lease time of {} ms", berth.host, settings.lease_time_ms);
            ground.history.note_world(words);
        }
        Box::pin(live(berth, settings, ground.clone(), workload.clone(), Arc::clone(&rows), flaw))
    })
}

/// Runs one worker: a real coordinator, and a reader for each lease handle.
async fn live(
    mut berth: HostContext,
    settings: CoordinatorSettings,
    ground: WorldSetup,
    workload: Workload,
    rows: Arc<FlawedRulesStore>,
    flaw: LeaseFlaw,
) {
    let (host, network) = (berth.host, &ground.network);
    let (clock, chance) = (Clock::of_runtime(), clock::Rng::seeded(berth.seed));
    let habits = WorkerFlaws::new(flaw, LEASE_TIME_MS);
    let link = network.link(host, Service::Store, PATIENCE_MS);
    let faulty = FaultyStore::new(rows, link, ground.history.clone());
    let store =
        FlawedWorkerStore::new(faulty, Arc::clone(&habits), clock.clone(), &host.to_string());
    let store: Arc<LeaseScenarioStore> = Arc::new(store);
    let link = network.link(host, Service::Stream, PATIENCE_MS);
    let api: Arc<LeaseScenarioApi> =
        Arc::new(FaultyStream::new(Arc::new(workload.api().clone()), link));
    let history = ground.history.clone();
    let told = history.clone();
    let events =
        Events::new(move |event| told.note(host, HistoryEvent::LibraryReported(event.clone())));
    let start = Coordinator::start(
        Arc::clone(&store),
        api,
        settings,
        clock.clone(),
        chance.clone(),
        events,
    );
    let (coordinator, mut grips) = tokio::select! {
        biased;
        _ = berth.stop.wait_for(|stop| *stop) => return,
        started = start => match started {
            Ok(started) => started,
            Err(error) => return history.note_world(format!("{host} can't start: {error}")),
        },
    };
    let desk = Arc::new(ReaderContext { host, history, workload, clock, chance, store, habits });
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = berth.stop.wait_for(|stop| *stop) => break,
            // Like a consumer, it ends with its last stream or its lease table.
            why = coordinator.wait_refused() => {
                desk.history.note_world(format!("{host} is refused: {why}"));
                break;
            }
            grip = grips.recv() => match grip {
                Some(grip) => {
                    readers.spawn(read(Arc::clone(&desk), grip));
                }
                None => return,
            },
            Some(read) = readers.join_next() => read.expect("a reader panicked"),
        }
    }
    let stopped = coordinator.stop(GRACE_MS).await;
    desk.history.note_world(format!("{host} stops: {stopped:?}"));
}

fn settings(host: HostId, lease_time_ms: u64) -> CoordinatorSettings {
    let mut settings = CoordinatorSettings::new(host.to_string())
        .with_stream(STREAM, StartPosition::TrimHorizon)
        .with_lease_time_ms(lease_time_ms);
    settings.full_list_interval = LEASE_TIME_MS * 2;
    settings.drain_timeout = LEASE_TIME_MS / 2;
    settings.failure_backoff = LEASE_TIME_MS / 4;
    settings.audit_interval = LEASE_TIME_MS;
    settings.call_timeout = PATIENCE_MS;
    settings
}
