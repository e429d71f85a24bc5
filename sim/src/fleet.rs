//! Hosts that run the real consumer, with a handler that is slow or fails at random.

use crate::faults::network::Service;
use crate::faults::{FaultKind, FaultyStore, FaultyStream, LeaseTimes};
use crate::flaw::consumer::ConsumerFlaw;
use crate::flaw::{FlawedStore, FlawedStream};
use crate::history::{HistoryEvent, HostId};
use crate::host::{HostContext, HostRun, HostStart};
use crate::host_thread::HostThread;
use crate::latest_tracker::LatestTracker;
use crate::modes::{self, FleetApi, SimMode};
use crate::record_source::{CONTAINER_MAX_BYTES, RecordSource, SimRecord};
use crate::rows::LeaseRows;
use crate::workload::DEAD_LETTERS;
use crate::world::WorldSetup;
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, DeadLetterQueue, FetchMode, HandlerError, OnError};
use anabranch::event::{Event, Events, LeaseEvent, ShardEvent};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{LeaseKey, LeaseToken, WorkerId};
use anabranch_model::position::{Position, StartPosition};
use anabranch_model::record::{Record, UserRecord};
use anabranch_model::retry::Backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Default lease time of a fleet, in milliseconds.
pub const LEASE_TIME_MS: u64 = 3_000;

/// Timeout of a call to a service, in milliseconds.
pub const PATIENCE_MS: u64 = 700;

/// Maximum duration of a handler call once faults are over, in milliseconds.
const CALM_CALL_MS: u64 = 2;

/// Behavior of the handlers and settings of their consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerBehavior {
    /// Numbers of lanes that a worker run may draw.
    pub lanes: Vec<usize>,
    /// Fetch mode.
    pub fetch: FetchMode,
    /// Processing mode.
    pub mode: SimMode,
    /// Attempts after which a record becomes a dead letter. `None`: unlimited attempts.
    pub attempts: Option<u32>,
    /// Maximum duration of a call, in milliseconds.
    pub call_ms: u64,
    /// Calls in a thousand that take up to `slow_ms`.
    pub slow: u64,
    /// Maximum duration of a slow or blocking call, in milliseconds.
    pub slow_ms: u64,
    /// Calls in a thousand that block their thread for up to `slow_ms`.
    pub blocks: u64,
    /// Calls in a thousand that fail.
    pub fails: u64,
    /// Grace period of a stop, in milliseconds.
    pub grace_ms: u64,
    /// Checkpoint interval, in milliseconds.
    pub checkpoint_ms: u64,
    /// Byte budget of a worker.
    pub memory_bytes: usize,
    /// Time without progress after which a fetch is restarted. `None`: the default.
    pub fetch_limit_ms: Option<u64>,
    /// Interval at which the rows are compared with the stream, in milliseconds.
    pub audit_ms: u64,
    /// Lease times of the worker runs.
    pub lease_times: LeaseTimes,
}

impl Default for HandlerBehavior {
    fn default() -> Self {
        Self {
            lanes: vec![1],
            fetch: FetchMode::Poll,
            mode: SimMode::Each,
            attempts: None,
            call_ms: 8,
            slow: 0,
            slow_ms: 1,
            blocks: 0,
            fails: 0,
            grace_ms: 2_000,
            checkpoint_ms: 500,
            memory_bytes: 256 << 20,
            fetch_limit_ms: None,
            audit_ms: 60_000,
            lease_times: LeaseTimes::same(LEASE_TIME_MS),
        }
    }
}

/// Shared state of all worker runs of a fleet.
#[derive(Clone)]
pub struct ConsumerFleet {
    /// World in which the fleet runs.
    pub ground: WorldSetup,
    /// The stream and its records.
    pub supply: RecordSource,
    /// Lease rows.
    pub rows: LeaseRows,
    /// Start position of the application.
    pub start: StartPosition,
    /// Behavior of the handlers.
    pub temper: HandlerBehavior,
    /// Worker that runs on each host: the last join of its run.
    pub joined: RunningWorkers,
    /// True once faults are over: then no handler is slow or fails.
    pub calm: Arc<AtomicBool>,
    /// The broken rule, if any.
    pub flaw: ConsumerFlaw,
}

/// Worker that runs on each host. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct RunningWorkers(Arc<Mutex<BTreeMap<HostId, WorkerId>>>);

impl RunningWorkers {
    /// Returns the worker that runs on a host, if it has joined.
    pub fn on(&self, host: HostId) -> Option<WorkerId> {
        self.workers().get(&host).cloned()
    }

    /// Registers the worker of a host. With `None` no worker of the host belongs to the fleet any
    /// more.
    fn set(&self, host: HostId, worker: Option<WorkerId>) {
        match worker {
            Some(worker) => drop(self.workers().insert(host, worker)),
            None => drop(self.workers().remove(&host)),
        }
    }

    fn workers(&self) -> MutexGuard<'_, BTreeMap<HostId, WorkerId>> {
        // Each change is one insertion or removal, so a panic leaves no partial change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConsumerFleet {
    /// Returns the function that starts the worker runs of this fleet.
    pub fn boot(&self) -> HostStart {
        let fleet = self.clone();
        Box::new(move |berth: HostContext| -> HostRun { Box::pin(live(berth, fleet.clone())) })
    }
}

/// Runs one worker: a real consumer until it is stopped.
async fn live(mut berth: HostContext, fleet: ConsumerFleet) {
    let (host, ground) = (berth.host, &fleet.ground);
    fleet.joined.set(host, None);
    let chance = Rng::seeded(berth.seed);
    let temper = &fleet.temper;
    let lease_time_ms = temper.lease_times.of_life(berth.seed);
    if lease_time_ms != LEASE_TIME_MS {
        ground.network.count(FaultKind::LeaseTime);
        ground.history.note_world(format!("{host} has a lease time of {lease_time_ms} ms"));
    }
    let lanes = temper.lanes[pick(&chance, temper.lanes.len())];
    let lanes = if temper.mode.takes_lanes() { lanes } else { 1 };
    let desk = Arc::new(HandlerState {
        host,
        fleet: fleet.clone(),
        clock: Clock::of_runtime(),
        thread: berth.thread.clone(),
        chance: Rng::seeded(berth.seed ^ 0x6861_6e64),
        inside: Mutex::default(),
    });
    let link = ground.network.link(host, Service::Store, PATIENCE_MS);
    let store = FaultyStore::new(Arc::new(fleet.rows.clone()), link, ground.history.clone());
    let own = FlawedStore::new(store.clone(), fleet.flaw);
    let store = FlawedStore::new(store, fleet.flaw);
    let link = ground.network.link(host, Service::Stream, PATIENCE_MS);
    let heard = Arc::clone(&desk);
    let tap = LatestTracker::new(&fleet.supply, &fleet.rows, fleet.start);
    let api = FaultyStream::new(Arc::new(tap), link)
        .observed_by(Arc::new(move |stream, records| heard.arrived(stream, records)));
    let api = FlawedStream::new(api, fleet.flaw);
    let told = Arc::clone(&desk);
    let streams = fleet.supply.streams().iter().cloned();
    let consumer: Consumer<FleetApi, _> = Consumer::streams(streams, "app")
        .with_kinesis(api)
        .with_leases(store)
        .with_clock(desk.clock.clone(), chance)
        .with_events(Events::new(move |event| told.on_event(event)))
        .with_concurrency(lanes)
        .starting_at(fleet.start)
        .on_error(temper.attempts.map_or(OnError::Retry, |attempts| OnError::DeadLetter {
            attempts,
            to: DeadLetterQueue::Stream(DEAD_LETTERS.into()),
        }))
        .with_settings(|settings| {
            settings.worker = Some(host.to_string());
            settings.fetch = temper.fetch;
            settings.lease_time = Duration::from_millis(lease_time_ms);
            settings.grace_period = Duration::from_millis(temper.grace_ms);
            settings.checkpoint_interval = Duration::from_millis(temper.checkpoint_ms);
            settings.memory_bytes = match fleet.flaw {
                ConsumerFlaw::IgnoresItsBudget => 1 << 30,
                _ => temper.memory_bytes,
            };
            settings.audit_interval = Duration::from_millis(temper.audit_ms);
            settings.retry = Backoff::new(20, 1_000);
            if let Some(limit_ms) = temper.fetch_limit_ms {
                (settings.watchdog.fetch_ms, settings.watchdog.iterator_ms) = (limit_ms, limit_ms);
            }
        });
    let stop = async move {
        // A host that crashes does not request a stop.
        if berth.stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let ended = modes::run(consumer, own, &desk, stop).await;
    ground.history.note_world(format!("the consumer on {host} ends: {ended:?}"));
}

fn pick(chance: &Rng, of: usize) -> usize {
    usize::try_from(chance.below(of as u64)).unwrap_or(0)
}

/// State of the handler of one worker run.
pub(crate) struct HandlerState {
    host: HostId,
    pub(crate) fleet: ConsumerFleet,
    clock: Clock,
    thread: HostThread,
    pub(crate) chance: Rng,
    inside: Mutex<HandlerStateInner>,
}

#[derive(Default)]
struct HandlerStateInner {
    /// Every lease that this run took, by its term.
    holds: BTreeMap<(LeaseKey, u64), LeaseToken>,
    /// Lease token under which each record was last handed out.
    handed: BTreeMap<(LeaseKey, Position), LeaseToken>,
    /// Sizes of the records that arrived and are not done, in bytes.
    held: BTreeMap<(LeaseKey, u64, Arc<str>), usize>,
    /// Sum of their bytes.
    bytes: usize,
    /// Maximum of `bytes` so far.
    most: usize,
}

/// A record that the handler was called with.
#[derive(Clone)]
pub(crate) struct HandledCall {
    pub(crate) hold: LeaseToken,
    pub(crate) grain: Arc<SimRecord>,
}

impl HandlerState {
    /// Processes an event of the consumer.
    fn on_event(&self, event: &Event) {
        match event {
            Event::Lease(LeaseEvent::LeaseTaken { lease, worker, term }) => {
                let hold = LeaseToken { key: lease.clone(), owner: worker.clone(), term: *term };
                self.inside().holds.insert((lease.clone(), *term), hold);
            }
            Event::Lease(LeaseEvent::Joined { worker }) => {
                self.fleet.joined.set(self.host, Some(worker.clone()));
            }
            Event::Lease(LeaseEvent::Evicted { .. }) => self.fleet.joined.set(self.host, None),
            Event::Shard(ShardEvent::Fetched { shard, .. }) => self.fleet.supply.begin(shard),
            Event::Shard(ShardEvent::Stopped { shard, .. }) => self.drop_records(shard),
            // Waiting records are dropped from here on, and no event reports when the last of them
            // is.
            Event::Lease(LeaseEvent::Draining { lease, .. } | LeaseEvent::LeaseLost { lease }) => {
                self.drop_records(lease);
            }
            _ => {}
        }
        self.note(HistoryEvent::LibraryReported(event.clone()));
        if let Event::Shard(ShardEvent::DeadLettered { shard, at, .. }) = event {
            self.dead_lettered(shard, *at);
        }
    }

    /// Processes a dead-lettered record: marks it as done if it is stored completely, and reports
    /// it as lost otherwise.
    fn dead_lettered(&self, shard: &LeaseKey, at: Position) {
        let hold = self.inside().handed.get(&(shard.clone(), at)).cloned();
        let Some((grain, hold)) = self.fleet.supply.at(&shard.stream, at).zip(hold) else { return };
        if self.fleet.supply.is_dead_letter(&grain) {
            self.done(&[HandledCall { hold, grain }]);
        } else {
            self.note(HistoryEvent::LostLetter { grain });
        }
    }

    /// Marks the records of a shard as no longer held.
    fn drop_records(&self, shard: &LeaseKey) {
        let mut inside = self.inside();
        inside.held.retain(|(key, ..), _| key != shard);
        inside.bytes = inside.held.values().sum();
    }

    /// Processes records that arrived.
    fn arrived(&self, stream: &StreamName, records: &[Record]) {
        let supply = &self.fleet.supply;
        let parts = records.iter().flat_map(|record| supply.parts(stream, record));
        let parts: Vec<(Arc<SimRecord>, bool)> = parts.collect();
        if !parts.is_empty() {
            let all = parts.iter().map(|(grain, _)| Arc::clone(grain)).collect();
            self.note(HistoryEvent::Arrived(all));
        }
        let mut inside = self.inside();
        for (grain, _) in parts.into_iter().filter(|(_, is_open)| *is_open) {
            let key = grain.shard.clone();
            inside.held.insert((key, grain.number, Arc::clone(&grain.key)), grain.bytes);
        }
        inside.bytes = inside.held.values().sum();
        if inside.bytes > inside.most {
            inside.most = inside.bytes;
            let shards: BTreeSet<&LeaseKey> = inside.held.keys().map(|(key, ..)| key).collect();
            let most = self.fleet.temper.memory_bytes + shards.len() * CONTAINER_MAX_BYTES;
            self.note(HistoryEvent::Holds { bytes: inside.bytes, most });
        }
    }

    /// Starts a handler call with records of one shard, under this term of its lease.
    pub(crate) fn begin(
        &self,
        shard: &LeaseKey,
        term: Option<u64>,
        records: &[UserRecord],
    ) -> Result<Vec<HandledCall>, HandlerError> {
        let garbled = |words: String| {
            self.note(HistoryEvent::Corrupted { lease: shard.clone(), words: words.clone() });
            HandlerError::from(words)
        };
        let hold = self.hold_of(shard, term);
        let hold = hold.ok_or_else(|| garbled(format!("records under term {term:?}")))?;
        let mut grains = Vec::new();
        for record in records {
            let grain = self.fleet.supply.find(&shard.stream, record);
            let never_put = || garbled(format!("what was never put at {}", record.position()));
            grains.push(grain.ok_or_else(never_put)?);
        }
        if grains.len() > 1 {
            self.note(HistoryEvent::Called { hold: hold.clone(), records: grains.len() });
        }
        let calls = grains.into_iter().map(|grain| {
            self.inside().handed.insert((hold.key.clone(), grain.at), hold.clone());
            self.note(HistoryEvent::Handed { hold: hold.clone(), grain: Arc::clone(&grain) });
            HandledCall { hold: hold.clone(), grain }
        });
        Ok(calls.collect())
    }

    /// Returns the lease token for records with this term of their lease.
    fn hold_of(&self, shard: &LeaseKey, term: Option<u64>) -> Option<LeaseToken> {
        self.inside().holds.get(&(shard.clone(), term?)).cloned()
    }

    /// Waits for the duration of one call, and then completes the records or fails.
    pub(crate) async fn handle(&self, calls: Vec<HandledCall>) -> Result<(), HandlerError> {
        if self.take_time().await {
            self.done(&calls);
            Ok(())
        } else {
            self.failed(calls);
            Err("the handler fails, as it was told".into())
        }
    }

    /// Waits for the duration of one call. Returns true if the call succeeds.
    pub(crate) async fn take_time(&self) -> bool {
        let temper = &self.fleet.temper;
        let foul = self.has_faults();
        let slow = self.chance.below(1_000) < temper.slow && foul;
        let most_ms = match (slow, foul) {
            (true, _) => temper.slow_ms,
            (false, true) => temper.call_ms,
            (false, false) => temper.call_ms.min(CALM_CALL_MS),
        };
        if foul && temper.blocks > 0 && self.chance.below(1_000) < temper.blocks {
            self.fleet.ground.network.count(FaultKind::Blocked);
            self.thread.block(1 + self.chance.below(temper.slow_ms)).await;
        } else {
            self.clock.sleep(self.chance.below(most_ms + 1)).await;
        }
        self.chance.below(1_000) >= temper.fails || !foul
    }

    /// Marks records as done.
    pub(crate) fn done(&self, calls: &[HandledCall]) {
        for HandledCall { hold, grain } in calls {
            self.fleet.supply.done(grain);
            let mut inside = self.inside();
            inside.held.remove(&(hold.key.clone(), grain.number, Arc::clone(&grain.key)));
            inside.bytes = inside.held.values().sum();
            drop(inside);
            let (hold, grain) = (hold.clone(), Arc::clone(grain));
            self.note(HistoryEvent::Handled { hold, grain, done: true });
        }
    }

    /// Marks records as failed, so that they must be delivered again.
    pub(crate) fn failed(&self, calls: Vec<HandledCall>) {
        for HandledCall { hold, grain } in calls {
            self.note(HistoryEvent::Handled { hold, grain, done: false });
        }
    }

    /// Returns true while faults last.
    pub(crate) fn has_faults(&self) -> bool {
        !self.fleet.calm.load(Ordering::Relaxed)
    }

    /// Adds an event of this host to the history.
    pub(crate) fn note(&self, what: HistoryEvent) {
        self.fleet.ground.history.note(self.host, what);
    }

    fn inside(&self) -> MutexGuard<'_, HandlerStateInner> {
        // Each change is a few plain assignments, so a panic leaves no partial change.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
