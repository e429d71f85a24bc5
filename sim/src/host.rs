//! One host: a paused runtime that runs as far as the world lets it.
//!
//! | state | crash | freeze | stop | time comes |
//! |---|---|---|---|---|
//! | up | down | frozen | up, told to stop | runs on; down when its life ends by itself; frozen when a handler blocks its thread |
//! | frozen | down | frozen | frozen, told to stop | up, and its clock jumps, unless it was paused |
//! | down | down | down | down | up, with a new life |

use crate::history::{History, HistoryEvent, HostId};
use crate::host_thread::HostThread;
use anabranch::clock::Clock;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a life on a host is given.
#[derive(Debug)]
pub struct HostContext {
    /// Which host.
    pub host: HostId,
    /// The how manieth life on it, from 1.
    pub life: u64,
    /// Where this life's chance begins.
    pub seed: u64,
    /// Turns true when the host is asked to stop.
    pub stop: watch::Receiver<bool>,
    /// The thread that everything on the host runs on.
    pub thread: HostThread,
}

/// A life: everything that runs on a host from its start to its end.
pub type HostRun = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What makes lives.
pub type HostStart = Box<dyn Fn(HostContext) -> HostRun>;

/// One host.
pub(crate) struct Host {
    id: HostId,
    /// How its clock goes wrong, in thousandths: 20 means that it shows 1020 ms for a second.
    skew: i64,
    /// The part of a millisecond that its clock has not shown yet, in thousandths.
    owed: i64,
    /// How many lives it has had.
    lives: u64,
    state: HostState,
}

enum HostState {
    Down { until_ms: u64 },
    Up(RunningHost),
    Frozen(FrozenHost),
}

/// A host that stands still.
struct FrozenHost {
    running: RunningHost,
    since_ms: u64,
    until_ms: u64,
    clock: ClockRuns,
    /// The time before `since_ms` that its clock has not shown.
    unshown: Duration,
}

/// Whether the clock of a host runs while it stands still.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockRuns {
    /// A process that was stopped, or a machine that was suspended.
    Yes,
    /// A machine that its hypervisor paused.
    No,
}

struct RunningHost {
    runtime: Runtime,
    life: JoinHandle<()>,
    stop: watch::Sender<bool>,
    thread: HostThread,
    /// How long the host stays down once this life has ended.
    rest_ms: u64,
}

impl RunningHost {
    /// Runs for a while, or until a handler blocks the thread. Returns for how long it does, and
    /// what is left of the while then.
    fn run(&mut self, step: Duration) -> Option<(u64, Duration)> {
        let thread = &self.thread;
        self.runtime.block_on(async {
            let clock = Clock::of_runtime();
            let begun_ms = clock.now_ms();
            // Paused time runs ahead to the next timer whenever nothing else is left to do, and no
            // further than this sleep.
            tokio::select! {
                biased;
                () = thread.blocked() => {}
                () = tokio::time::sleep(step) => {}
            }
            let for_ms = thread.take()?;
            let ran = Duration::from_millis(clock.now_ms().saturating_sub(begun_ms));
            Some((for_ms, step.saturating_sub(ran)))
        })
    }
}

/// How long a host stays down whose life ended without being asked to.
const RESTART_MS: u64 = 500;

impl Host {
    /// A host that boots at the first chance.
    pub(crate) fn new(id: HostId, skew: i64) -> Self {
        Self { id, skew, owed: 0, lives: 0, state: HostState::Down { until_ms: 0 } }
    }

    /// The host dies with all that it knows, and stays down until then. Returns whether something ran
    /// on it.
    pub(crate) fn crash(&mut self, until_ms: u64) -> bool {
        let before = std::mem::replace(&mut self.state, HostState::Down { until_ms });
        !matches!(before, HostState::Down { .. })
    }

    /// The host stands still until then. Returns whether it was up.
    pub(crate) fn freeze(&mut self, now_ms: u64, until_ms: u64, clock: ClockRuns) -> bool {
        let was_up = self.is_up();
        let state = std::mem::replace(&mut self.state, HostState::Down { until_ms: 0 });
        self.state = match state {
            HostState::Up(running) => {
                let (since_ms, unshown) = (now_ms, Duration::ZERO);
                HostState::Frozen(FrozenHost { running, since_ms, until_ms, clock, unshown })
            }
            other => other,
        };
        was_up
    }

    /// The host is asked to stop, and comes back `rest_ms` after it did. Returns whether something runs
    /// on it that was not asked before.
    pub(crate) fn stop(&mut self, rest_ms: u64) -> bool {
        match &mut self.state {
            HostState::Up(running) | HostState::Frozen(FrozenHost { running, .. }) => {
                running.rest_ms = rest_ms;
                !running.stop.send_replace(true)
            }
            HostState::Down { .. } => false,
        }
    }

    /// Its clock jumps, if it runs. That of a host that stands still shows it when that goes on.
    pub(crate) fn jump(&mut self, by_ms: u64) {
        let by = self.on_its_clock(by_ms);
        match &mut self.state {
            HostState::Up(running) => {
                running.runtime.block_on(async { tokio::time::advance(by).await });
            }
            HostState::Frozen(FrozenHost { clock: ClockRuns::Yes, unshown, .. }) => *unshown += by,
            HostState::Frozen(FrozenHost { clock: ClockRuns::No, .. }) | HostState::Down { .. } => {
            }
        }
    }

    /// Whatever ails it is over: a frozen host goes on and one that is down boots, at once.
    pub(crate) fn recover(&mut self, now_ms: u64) {
        match &mut self.state {
            HostState::Down { until_ms } | HostState::Frozen(FrozenHost { until_ms, .. }) => {
                *until_ms = now_ms;
            }
            HostState::Up(_) => {}
        }
    }

    /// Whether something runs on it.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, HostState::Up(_))
    }

    /// Whether something runs on it, or stands still there.
    pub(crate) fn is_running_or_frozen(&self) -> bool {
        !matches!(self.state, HostState::Down { .. })
    }

    /// Lets the host run for a while, by the world's clock.
    pub(crate) fn tick(
        &mut self,
        now_ms: u64,
        step_ms: u64,
        seed: u64,
        boot: &HostStart,
        history: &History,
    ) -> Result<(), String> {
        let state = std::mem::replace(&mut self.state, HostState::Down { until_ms: u64::MAX });
        self.state = match state {
            HostState::Down { until_ms } if now_ms < until_ms => HostState::Down { until_ms },
            HostState::Down { .. } => {
                self.lives += 1;
                history.note_world(format!("{} boots, life {}", self.id, self.lives));
                HostState::Up(self.boot(seed, boot)?)
            }
            HostState::Frozen(frozen) if now_ms < frozen.until_ms => HostState::Frozen(frozen),
            HostState::Frozen(FrozenHost { running, since_ms, clock: ClockRuns::No, .. }) => {
                history.note(self.id, HistoryEvent::Paused { since_ms });
                HostState::Up(running)
            }
            HostState::Frozen(FrozenHost { running, since_ms, unshown, .. }) => {
                history.note_world(format!("{} goes on, {} ms later", self.id, now_ms - since_ms));
                let jump = self.on_its_clock(now_ms - since_ms) + unshown;
                running.runtime.block_on(async { tokio::time::advance(jump).await });
                HostState::Up(running)
            }
            HostState::Up(running) => HostState::Up(running),
        };
        let step = self.on_its_clock(step_ms);
        let HostState::Up(running) = &mut self.state else { return Ok(()) };
        if let Some((for_ms, unshown)) = running.run(step) {
            history
                .note_world(format!("a handler blocks the thread of {} for {for_ms} ms", self.id));
            self.freeze(now_ms, now_ms + for_ms, ClockRuns::Yes);
            if let HostState::Frozen(frozen) = &mut self.state {
                frozen.unshown = unshown;
            }
            return Ok(());
        }
        if running.life.is_finished() {
            let end = running.runtime.block_on(&mut running.life);
            let rest_ms = running.rest_ms;
            history.note_world(format!("the life on {} ends", self.id));
            self.state = HostState::Down { until_ms: now_ms.saturating_add(rest_ms) };
            end.map_err(|panic| format!("the life on {} panicked: {panic}", self.id))?;
        }
        Ok(())
    }

    fn boot(&self, seed: u64, boot: &HostStart) -> Result<RunningHost, String> {
        let (stop, stopped) = watch::channel(false);
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| format!("no runtime for {}: {error}", self.id))?;
        let thread = HostThread::default();
        let (host, life) = (self.id, self.lives);
        let berth = HostContext { host, life, seed, stop: stopped, thread: thread.clone() };
        let life = runtime.spawn(boot(berth));
        Ok(RunningHost { runtime, life, stop, thread, rest_ms: RESTART_MS })
    }

    /// What the host's clock shows for a stretch of the world's time, in whole milliseconds.
    fn on_its_clock(&mut self, world_ms: u64) -> Duration {
        let world_ms = i64::try_from(world_ms).unwrap_or(i64::MAX / 2_000);
        let shown = world_ms * (1_000 + self.skew) + self.owed;
        self.owed = shown % 1_000;
        Duration::from_millis(u64::try_from(shown / 1_000).unwrap_or(0))
    }
}
