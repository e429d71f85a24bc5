//! Tests of the world itself: a seed determines the history, and each fault has the documented
//! effect on a host and its writes.

use anabranch::lease::{LeaseStore, MemoryStore};
use anabranch_model::lease::{Nonce, WorkerChange, WorkerId, Write, WriteOutcome};
use anabranch_sim::faults::host_faults::HostFault;
use anabranch_sim::faults::network::{PartialOutage, Service};
use anabranch_sim::faults::{CallFaultRates, FaultKind, FaultyStore, HostFaultRates, RefusalKind};
use anabranch_sim::history::{HistoryEvent, HistoryLine, HostId};
use anabranch_sim::host::{HostContext, HostRun};
use anabranch_sim::world::{World, WorldSetup};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATIENCE_MS: u64 = 1_000;

/// A world in which each host joins, sends heartbeats, and notes the replies.
struct WorldFixture {
    ground: WorldSetup,
    table: MemoryStore,
    world: World,
    /// Notes of the worker runs: their own time, and the replies of the store.
    notes: HostNotes,
}

type HostNotes = Arc<Mutex<Vec<(u128, String)>>>;

impl WorldFixture {
    fn new(seed: u64, hosts: usize) -> Self {
        let ground = WorldSetup::new(seed);
        let table = MemoryStore::new();
        let notes = HostNotes::default();
        let (base, rows, shared) = (ground.clone(), Arc::new(table.clone()), Arc::clone(&notes));
        let boot = Box::new(move |berth: HostContext| -> HostRun {
            let link = base.network.link(berth.host, Service::Store, PATIENCE_MS);
            let store = FaultyStore::new(Arc::clone(&rows), link, base.history.clone());
            Box::pin(beats(berth, store, Arc::clone(&shared)))
        });
        let world = World::new(seed, ground.clone(), hosts, boot);
        Self { ground, table, world, notes }
    }

    fn run(&mut self, for_ms: u64) {
        self.world.run(for_ms, |_, _| ()).expect("no life panics");
    }

    fn counter(&self) -> u64 {
        self.table.snapshot().workers().map(|worker| worker.counter).max().unwrap_or(0)
    }

    fn noted(&self, words: &str) -> usize {
        let notes = self.notes.lock().expect("nobody panics with it");
        notes.iter().filter(|(_, noted)| noted == words).count()
    }
}

/// Joins, then sends a heartbeat every 200 ms of its own time until it is asked to stop.
async fn beats(mut berth: HostContext, store: FaultyStore<MemoryStore>, notes: HostNotes) {
    let start = tokio::time::Instant::now();
    let id = WorkerId::of_join(&berth.host.to_string(), berth.seed);
    let note = |words: &str| {
        let line = (start.elapsed().as_millis(), words.to_owned());
        notes.lock().expect("nobody panics with it").push(line);
    };
    let join =
        WorkerChange::Join { host: String::new(), started_ms: 0, reads: None, lease_time_ms: None };
    let mut write = Write::worker(&id, join, Nonce(1));
    let mut counter = 0;
    while !*berth.stop.borrow_and_update() {
        match store.write(&write).await {
            Ok(WriteOutcome::Unknown) => note("unknown"),
            Ok(WriteOutcome::Refused { .. }) => note("refused"),
            Ok(WriteOutcome::Done(_)) => note("done"),
            Err(error) => {
                let throttled = error.to_string().contains("throttling");
                note(if throttled { "throttled" } else { "failed" });
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        if let Ok(Some(row)) = store.worker(&id).await {
            counter = row.counter;
            let nonce = Nonce(counter + 2);
            write = Write::worker(&id, WorkerChange::Beat { counter }, nonce);
        }
    }
    let leave = Write::worker(&id, WorkerChange::Leave { counter }, Nonce(0));
    let _ = store.write(&leave).await;
}

/// Returns the whole history of a minute with faults, as text.
fn bad_minute(seed: u64) -> String {
    let mut stage = WorldFixture::new(seed, 4);
    let weather = CallFaultRates::random(stage.world.rng());
    stage.ground.network.set_weather(Service::Store, weather);
    let chaos = HostFaultRates::random(stage.world.rng(), 2_000);
    stage.world.set_chaos(chaos);
    stage.run(60_000);
    let lines = stage.ground.history.take();
    lines.iter().map(HistoryLine::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    for seed in 0..20 {
        let once = bad_minute(seed);
        assert!(once.lines().count() > 100, "seed {seed}: {once}");
        assert_eq!(once, bad_minute(seed), "seed {seed}");
    }
    assert_ne!(bad_minute(1), bad_minute(2));
}

#[test]
fn a_fair_world_answers_every_call() {
    let mut stage = WorldFixture::new(1, 1);
    stage.run(10_000);
    assert!(stage.counter() > 30);
    assert_eq!(stage.noted("done"), stage.notes.lock().expect("free").len());
}

#[test]
fn what_is_in_flight_lands_after_its_sender_has_died() {
    let mut stage = WorldFixture::new(3, 1);
    let late = CallFaultRates { late: 1_000, ..CallFaultRates::none() };
    stage.ground.network.set_weather(Service::Store, late);
    stage.run(500);
    assert_eq!(stage.table.snapshot().workers().count(), 0, "the join is on its way");
    stage.world.stop_faults(Some(HostId(0)));
    stage.run(PATIENCE_MS * 20);
    assert_eq!(stage.table.snapshot().workers().count(), 1, "the join has landed");
}

#[test]
fn a_lost_reply_is_unknown_and_was_applied() {
    let mut stage = WorldFixture::new(4, 1);
    let lossy = CallFaultRates { reply_lost: 1_000, ..CallFaultRates::none() };
    stage.ground.network.set_weather(Service::Store, lossy);
    stage.run(PATIENCE_MS + 200);
    assert_eq!((stage.table.snapshot().workers().count(), stage.noted("unknown")), (1, 1));
}

#[test]
fn a_lost_request_is_unknown_and_never_applied() {
    let mut stage = WorldFixture::new(4, 1);
    let lossy = CallFaultRates { request_lost: 1_000, ..CallFaultRates::none() };
    stage.ground.network.set_weather(Service::Store, lossy);
    stage.run(PATIENCE_MS * 30);
    assert_eq!(stage.table.snapshot().workers().count(), 0);
    assert!(stage.noted("unknown") > 10);
}

#[test]
fn errors_throttles_and_outages_do_nothing_to_the_rows() {
    let error = CallFaultRates { error: 1_000, ..CallFaultRates::none() };
    let throttle = CallFaultRates { throttle: 1_000, ..CallFaultRates::none() };
    for (weather, words, fault) in
        [(error, "failed", FaultKind::Error), (throttle, "throttled", FaultKind::Throttle)]
    {
        let mut stage = WorldFixture::new(5, 1);
        stage.ground.network.set_weather(Service::Store, weather);
        stage.run(5_000);
        assert_eq!(stage.table.snapshot().workers().count(), 0);
        assert!(stage.noted(words) > 10, "{words}");
        assert!(stage.ground.network.counts().of(fault) > 20);
    }
    let mut stage = WorldFixture::new(6, 1);
    stage.ground.network.outage(Service::Store, 5_000);
    stage.run(5_000);
    assert_eq!((stage.counter(), stage.noted("done")), (0, 0));
    stage.run(8_000);
    assert!(stage.counter() > 10, "the outage is over");
}

#[test]
fn a_host_that_is_cut_off_hears_nothing_and_is_heard_or_not() {
    for (cut, rows) in [(PartialOutage::Requests, 0), (PartialOutage::Replies, 1)] {
        let mut stage = WorldFixture::new(7, 2);
        stage.ground.network.cut(HostId(0), cut, 10_000);
        stage.run(9_000);
        let table = stage.table.snapshot();
        let cut_off = table.workers().filter(|worker| worker.id.as_str().starts_with("h0"));
        assert_eq!(cut_off.count(), rows, "{cut:?}");
        assert!(stage.counter() > 20, "the other one beats");
    }
}

#[test]
fn a_frozen_host_does_nothing_and_finds_its_clock_moved() {
    let mut stage = WorldFixture::new(8, 1);
    let chaos = HostFaultRates {
        freeze_every_ms: Some(1),
        lasts_ms: 60_000..=60_000,
        or_lasts_ms: 60_000..=60_000,
        ..HostFaultRates::none()
    };
    stage.run(2_000);
    stage.world.set_chaos(chaos);
    stage.run(50);
    stage.world.set_chaos(HostFaultRates::none());
    let before = stage.counter();
    stage.run(50_000);
    assert!(stage.counter() <= before + 1, "at most what was in flight landed");
    stage.run(12_000);
    assert!(stage.counter() > before + 3);
    let notes = stage.notes.lock().expect("nobody panics with it");
    let jump = notes.windows(2).map(|pair| pair[1].0 - pair[0].0).max().expect("there are notes");
    assert!(jump >= 55_000, "its own clock showed {jump} ms at once");
}

#[test]
fn a_host_that_is_asked_to_stop_ends_its_life_itself_and_comes_back() {
    let mut stage = WorldFixture::new(9, 1);
    let chaos = HostFaultRates {
        stop_every_ms: Some(1),
        lasts_ms: 1_000..=1_000,
        or_lasts_ms: 1_000..=1_000,
        ..HostFaultRates::none()
    };
    stage.run(2_000);
    stage.world.set_chaos(chaos);
    stage.run(20);
    stage.world.set_chaos(HostFaultRates::none());
    stage.run(1_000);
    assert_eq!(stage.world.up().count(), 0);
    assert!(stage.table.snapshot().workers().all(|worker| !worker.is_alive()), "it has left");
    stage.run(5_000);
    assert_eq!(stage.world.up().count(), 1);
    assert_eq!(stage.table.snapshot().workers().count(), 2, "the second life has a row of its own");
}

#[test]
fn a_host_that_is_cut_off_from_one_service_reaches_the_other_and_so_do_its_rivals() {
    for (service, rows, fault) in
        [(Service::Store, 0, FaultKind::StoreCut), (Service::Stream, 1, FaultKind::StreamCut)]
    {
        let mut stage = WorldFixture::new(7, 2);
        stage.ground.network.cut_from(HostId(0), service, PartialOutage::Requests, 10_000);
        stage.run(9_000);
        let table = stage.table.snapshot();
        let cut_off = table.workers().filter(|worker| worker.id.as_str().starts_with("h0"));
        assert_eq!(cut_off.count(), rows, "{service:?}");
        assert!(stage.counter() > 20, "the other one beats");
        let met = stage.ground.network.counts().of(fault);
        assert_eq!(met, u64::from(service == Service::Store), "{service:?}");
    }
}

#[test]
fn a_refusal_does_nothing_to_the_rows_and_is_over_in_time() {
    for why in RefusalKind::of(Service::Store) {
        let mut stage = WorldFixture::new(6, 1);
        stage.ground.network.refuse(Service::Store, *why, 5_000);
        stage.run(4_990);
        assert_eq!((stage.counter(), stage.noted("done")), (0, 0), "{why}");
        assert!(stage.noted("failed") > 10, "{why}");
        assert!(stage.ground.network.counts().of(FaultKind::StoreRefused(*why)) > 10);
        stage.run(8_000);
        assert!(stage.counter() > 10, "{why} is over");
    }
}

#[test]
fn a_write_that_arrives_twice_is_applied_once() {
    let mut stage = WorldFixture::new(10, 1);
    let twice = CallFaultRates { twice: 1_000, ..CallFaultRates::none() };
    stage.ground.network.set_weather(Service::Store, twice);
    stage.run(20_000);
    let lines = stage.ground.history.take();
    let count = |is: fn(&HistoryEvent) -> bool| lines.iter().filter(|line| is(&line.what)).count();
    let again = count(|what| matches!(what, HistoryEvent::World(words) if words.contains("again")));
    assert!(again > 30, "{again} arrived again");
    let landed = count(|what| matches!(what, HistoryEvent::WriteApplied { .. }));
    let done = count(|what| {
        matches!(what, HistoryEvent::WriteApplied { outcome: WriteOutcome::Done(_), .. })
    });
    // The join and the heartbeats, each once.
    assert_eq!(done as u64, stage.counter() + 1);
    assert_eq!(landed, done + again);
}

#[test]
fn a_paused_host_does_nothing_and_finds_its_clock_where_it_was() {
    let mut stage = WorldFixture::new(8, 1);
    stage.run(2_000);
    stage.world.apply_fault(HostFault::Pause(HostId(0), 60_000));
    let before = stage.counter();
    stage.run(59_000);
    assert!(stage.counter() <= before + 1, "at most what was in flight landed");
    stage.run(12_000);
    assert!(stage.counter() > before + 3);
    let notes = stage.notes.lock().expect("nobody panics with it");
    let jump = notes.windows(2).map(|pair| pair[1].0 - pair[0].0).max().expect("there are notes");
    assert!(jump < u128::from(2 * PATIENCE_MS), "its own clock showed {jump} ms at once");
}

/// Host 0 joins repeatedly, and host 1 polls. Each join increments the version and adds a worker.
/// Returns how often a poll showed too few workers, and how often too many.
fn torn_looks(weather: CallFaultRates) -> (usize, usize) {
    let ground = WorldSetup::new(11);
    let rows = Arc::new(MemoryStore::new());
    ground.network.set_weather(Service::Store, weather);
    let torn = Arc::new(Mutex::new((0, 0)));
    let (base, seen) = (ground.clone(), Arc::clone(&torn));
    let boot = Box::new(move |berth: HostContext| -> HostRun {
        let link = base.network.link(berth.host, Service::Store, PATIENCE_MS);
        let store = FaultyStore::new(Arc::clone(&rows), link, base.history.clone());
        let torn = Arc::clone(&seen);
        Box::pin(async move {
            for number in 0.. {
                if berth.host == HostId(0) {
                    let id = WorkerId::of_join("w", number);
                    let join = WorkerChange::Join {
                        host: String::new(),
                        started_ms: 0,
                        reads: None,
                        lease_time_ms: None,
                    };
                    let _ = store.write(&Write::worker(&id, join, Nonce(1))).await;
                } else if let Ok(look) = store.poll().await {
                    let version = usize::try_from(look.version.unwrap_or(0)).expect("it is small");
                    let mut torn = torn.lock().expect("nobody panics with it");
                    torn.0 += usize::from(look.workers.len() < version);
                    torn.1 += usize::from(look.workers.len() > version);
                }
            }
        })
    });
    let mut world = World::new(11, ground, 2, boot);
    world.run(20_000, |_, _| ()).expect("no life panics");
    *torn.lock().expect("nobody panics with it")
}

#[test]
fn a_transaction_that_commits_slowly_shows_its_version_and_its_row_apart() {
    assert_eq!(torn_looks(CallFaultRates::none()), (0, 0));
    let (too_few, too_many) =
        torn_looks(CallFaultRates { slow_commit: 1_000, ..CallFaultRates::none() });
    assert!(too_few > 10 && too_many > 10, "{too_few}, {too_many}");
}

#[test]
fn a_handler_that_blocks_its_thread_stops_its_host_and_goes_on_first() {
    let ground = WorldSetup::new(12);
    let notes = HostNotes::default();
    let shared = Arc::clone(&notes);
    let boot = Box::new(move |berth: HostContext| -> HostRun {
        let (thread, notes) = (berth.thread.clone(), Arc::clone(&shared));
        Box::pin(async move {
            let start = tokio::time::Instant::now();
            let note = |words: &str| {
                let line = (start.elapsed().as_millis(), words.to_owned());
                notes.lock().expect("nobody panics with it").push(line);
            };
            let handler = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                note("blocks");
                thread.block(3_000).await;
                note("returns");
            };
            let others = async {
                for _ in 0..20 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    note("beats");
                }
            };
            tokio::join!(biased; others, handler);
        })
    });
    let mut world = World::new(12, ground, 1, boot);
    world.run(9_000, |_, _| ()).expect("no life panics");
    let notes = notes.lock().expect("nobody panics with it");
    let at = |words: &str| notes.iter().position(|(_, noted)| noted == words).expect("it is there");
    let (blocks, returns) = (at("blocks"), at("returns"));
    assert_eq!(returns, blocks + 1, "nothing else ran meanwhile: {notes:?}");
    let blocked_ms = notes[returns].0 - notes[blocks].0;
    assert!((2_900..=3_200).contains(&blocked_ms), "its clock showed {blocked_ms} ms");
    assert!(notes.len() > returns + 3, "the others go on: {notes:?}");
}
