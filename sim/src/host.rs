//! One host: a paused runtime that runs as far as the world lets it.
//!
//! | state | crash | freeze | stop | time comes |
//! |---|---|---|---|---|
//! | up | down | frozen | up, stopping | continues (1) |
//! | frozen | down | frozen | frozen, stopping | up, and its clock jumps, unless it was paused |
//! | down | down | down | down | up, with a new run |
//!
//! (1) Goes down when its run ends by itself, and freezes when a handler blocks its thread.

use crate::history::{History, HistoryEvent, HostId};
use crate::host_thread::HostThread;
use anabranch::clock::Clock;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Context of one worker run on a host.
#[derive(Debug)]
pub struct HostContext {
    /// Index of the host.
    pub host: HostId,
    /// Run number on this host, starting at 1.
    pub life: u64,
    /// Seed of this run's RNG.
    pub seed: u64,
    /// Becomes true when the host is asked to stop.
    pub stop: watch::Receiver<bool>,
    /// The thread that everything on the host runs on.
    pub thread: HostThread,
}

/// A run: everything that executes on a host from its start to its end.
pub type HostRun = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Creates runs.
pub type HostStart = Box<dyn Fn(HostContext) -> HostRun>;

pub(crate) struct Host {
    id: HostId,
    /// Clock skew in thousandths: 20 means that the clock shows 1020 ms for a second.
    skew: i64,
    /// Fraction of a millisecond that its clock has not shown yet, in thousandths.
    owed: i64,
    /// Number of runs so far.
    lives: u64,
    state: HostState,
}

enum HostState {
    Down { until_ms: u64 },
    Up(RunningHost),
    Frozen(FrozenHost),
}

/// A frozen host.
struct FrozenHost {
    running: RunningHost,
    since_ms: u64,
    until_ms: u64,
    clock: ClockRuns,
    /// Time before `since_ms` that its clock has not shown.
    unshown: Duration,
}

/// Selects whether the clock of a frozen host runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockRuns {
    /// A stopped process or a suspended machine.
    Yes,
    /// A machine that its hypervisor paused.
    No,
}

struct RunningHost {
    runtime: Runtime,
    life: JoinHandle<()>,
    stop: watch::Sender<bool>,
    thread: HostThread,
    /// Time for which the host stays down after this run has ended, in milliseconds.
    rest_ms: u64,
}

impl RunningHost {
    /// Runs for `step`, or until a handler blocks the thread. Returns for how long it blocks, and
    /// the rest of the step.
    fn run(&mut self, step: Duration) -> Option<(u64, Duration)> {
        let thread = &self.thread;
        self.runtime.block_on(async {
            let clock = Clock::of_runtime();
            let begun_ms = clock.now_ms();
            // Paused time advances to the next timer whenever nothing else is left to do, and no
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

/// Time for which a host stays down after a run that ended unasked, in milliseconds.
const RESTART_MS: u64 = 500;

impl Host {
    /// Creates a host that starts at the first opportunity.
    pub(crate) fn new(id: HostId, skew: i64) -> Self {
        Self { id, skew, owed: 0, lives: 0, state: HostState::Down { until_ms: 0 } }
    }

    /// Crashes the host, which loses all its state and stays down until `until_ms`. Returns true if
    /// it was up or frozen.
    pub(crate) fn crash(&mut self, until_ms: u64) -> bool {
        let before = std::mem::replace(&mut self.state, HostState::Down { until_ms });
        !matches!(before, HostState::Down { .. })
    }

    /// Freezes the host until `until_ms`. Returns true if it was up.
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

    /// Asks the host to stop. It starts again `rest_ms` after its run has ended. Returns true if
    /// something runs on it that was not asked before.
    pub(crate) fn stop(&mut self, rest_ms: u64) -> bool {
        match &mut self.state {
            HostState::Up(running) | HostState::Frozen(FrozenHost { running, .. }) => {
                running.rest_ms = rest_ms;
                !running.stop.send_replace(true)
            }
            HostState::Down { .. } => false,
        }
    }

    /// Advances the host's clock at once, if it runs. A frozen host shows the jump when it resumes.
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

    /// Ends a freeze or downtime: a frozen host resumes and one that is down starts, at once.
    pub(crate) fn recover(&mut self, now_ms: u64) {
        match &mut self.state {
            HostState::Down { until_ms } | HostState::Frozen(FrozenHost { until_ms, .. }) => {
                *until_ms = now_ms;
            }
            HostState::Up(_) => {}
        }
    }

    /// Returns true if something runs on it.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, HostState::Up(_))
    }

    /// Returns true if something runs on it or is frozen there.
    pub(crate) fn is_running_or_frozen(&self) -> bool {
        !matches!(self.state, HostState::Down { .. })
    }

    /// Runs the host for a step of world time.
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

    /// Returns how far the host's clock advances in a period of world time, in whole milliseconds.
    fn on_its_clock(&mut self, world_ms: u64) -> Duration {
        let world_ms = i64::try_from(world_ms).unwrap_or(i64::MAX / 2_000);
        let shown = world_ms * (1_000 + self.skew) + self.owed;
        self.owed = shown % 1_000;
        Duration::from_millis(u64::try_from(shown / 1_000).unwrap_or(0))
    }
}
