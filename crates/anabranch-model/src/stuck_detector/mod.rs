//! Whether a shard stands still, and what to do about it.
//!
//! A watcher looks at a shard now and then. Each piece of work under way shows a *mark*, a number
//! that moves when the work gets on. How long a mark has stood still is counted by the watcher's
//! own looks, so the work itself reads no clock.
//!
//! | phase                    | stands for its limit        | then again                        |
//! |--------------------------|-----------------------------|-----------------------------------|
//! | iterator, fetch, decode  | restart                     | restart, in the end release       |
//! | handler                  | report, or restart if asked | the same, in the end release      |
//! | checkpoint               | report                      | release                           |

use std::fmt;

/// A step of reading a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadPhase {
    /// A place to read from is asked for: an iterator, or a subscription.
    Iterator,
    /// Records are asked for.
    Fetch,
    /// Records are taken apart.
    Decode,
    /// The handler has records, or a processor is told that its shard begins or has ended, or a
    /// shard's stream waits to be taken.
    Handler,
    /// What is done is not written down.
    Checkpoint,
}

impl ReadPhase {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iterator => "iterator",
            Self::Fetch => "fetch",
            Self::Decode => "decode",
            Self::Handler => "handler",
            Self::Checkpoint => "checkpoint",
        }
    }
}

impl fmt::Display for ReadPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// For how long each phase may stand still, in milliseconds, and what follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchdogLimits {
    /// No iterator, and no subscription. Default 60,000.
    pub iterator_ms: u64,
    /// No reply, not even an empty one. Default 60,000: longer than one call may take.
    pub fetch_ms: u64,
    /// One reply is still being taken apart. Default 60,000.
    pub decode_ms: u64,
    /// One call of the handler has not returned, nor `initialize` or `shard_ended` of a processor;
    /// nobody takes a shard's stream, or acks the last of it. Default 300,000.
    pub handler_ms: u64,
    /// Records are done, and no checkpoint was written. Default 60,000.
    pub checkpoint_ms: u64,
    /// Whether a handler that stands still is dropped and its records come again. So is a
    /// `shard_ended`, which comes again, and an `initialize`, whose shard is given back and taken
    /// again after a pause. Default: it is only reported.
    pub drop_handlers: bool,
    /// How many restarts in a row may not help before the shard is given to another worker.
    /// Default 2.
    pub restarts: u32,
}

impl Default for WatchdogLimits {
    fn default() -> Self {
        Self {
            iterator_ms: 60_000,
            fetch_ms: 60_000,
            decode_ms: 60_000,
            handler_ms: 300_000,
            checkpoint_ms: 60_000,
            drop_handlers: false,
            restarts: 2,
        }
    }
}

impl WatchdogLimits {
    /// The limit of a phase.
    pub fn of(&self, phase: ReadPhase) -> u64 {
        match phase {
            ReadPhase::Iterator => self.iterator_ms,
            ReadPhase::Fetch => self.fetch_ms,
            ReadPhase::Decode => self.decode_ms,
            ReadPhase::Handler => self.handler_ms,
            ReadPhase::Checkpoint => self.checkpoint_ms,
        }
    }
}

/// What is under way in a shard at one look.
#[derive(Clone, Copy, Default, Debug)]
pub struct ShardActivity<'a> {
    /// The phase of fetching and its mark; `None` while it waits for room, for the lanes or for
    /// the next poll.
    pub fetching: Option<(ReadPhase, u64)>,
    /// The mark of each handler that runs.
    pub handlers: &'a [Option<u64>],
    /// The mark of the checkpoints, while something done is not written down.
    pub checkpoint: Option<u64>,
}

/// What is to be done about a shard that stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchdogAction {
    /// Nothing but to say so.
    Report,
    /// The reading begins anew where it stands.
    Restart,
    /// The lease is given back, once no handler runs.
    Release,
}

/// A shard that stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StuckShard {
    /// In which phase.
    pub phase: ReadPhase,
    /// For how long, in milliseconds.
    pub for_ms: u64,
    /// What is to be done.
    pub remedy: WatchdogAction,
}

/// The watch over one shard.
#[derive(Clone, Debug)]
pub struct StuckDetector {
    /// What is allowed.
    limits: WatchdogLimits,
    /// Fetching.
    fetching: ProgressTimer,
    /// The handler of each lane.
    handlers: Vec<ProgressTimer>,
    /// Writing down.
    checkpoint: ProgressTimer,
}

/// A mark, and since when it stands.
#[derive(Clone, Copy, Default, Debug)]
struct ProgressTimer {
    /// The last mark that was seen.
    mark: Option<u64>,
    /// Whether there was something to do at the last look.
    busy: bool,
    /// Since when it stands, or since when the last remedy was tried.
    since_ms: u64,
    /// Since when it stands, whatever was tried.
    first_ms: u64,
    /// How often it was told since the last remedy.
    told: u32,
    /// Restarts since it has moved.
    restarts: u32,
}

impl ProgressTimer {
    /// Looks at the mark, `None` while there is nothing to do. Returns for how long it stands, when
    /// that is too long and has to be told.
    fn check(&mut self, now_ms: u64, mark: Option<u64>, limit_ms: u64) -> Option<u64> {
        let Some(mark) = mark else {
            self.busy = false;
            return None;
        };
        if self.mark != Some(mark) {
            *self = Self { mark: Some(mark), ..Self::default() };
        }
        if !self.busy {
            (self.busy, self.told) = (true, 0);
            (self.since_ms, self.first_ms) = (now_ms, now_ms);
        }
        // Told at the limit, then at twice that, then at four times: not with every look.
        let due_ms = limit_ms.saturating_mul(1 << self.told.min(16));
        if now_ms.saturating_sub(self.since_ms) < due_ms {
            return None;
        }
        self.told = self.told.saturating_add(1);
        Some(now_ms.saturating_sub(self.first_ms))
    }

    /// What is tried next. It has the whole limit again.
    fn next_action(&mut self, now_ms: u64, most: u32) -> WatchdogAction {
        (self.since_ms, self.told) = (now_ms, 0);
        if self.restarts >= most {
            self.restarts = 0;
            return WatchdogAction::Release;
        }
        self.restarts += 1;
        WatchdogAction::Restart
    }

    /// For how long it stands, when that is longer than it may.
    fn over(&self, now_ms: u64, limit_ms: u64) -> Option<u64> {
        let for_ms = now_ms.saturating_sub(self.first_ms);
        (self.busy && for_ms >= limit_ms).then_some(for_ms)
    }
}

impl StuckDetector {
    /// A watch that has not looked yet.
    pub fn new(limits: WatchdogLimits) -> Self {
        let (fetching, checkpoint) = (ProgressTimer::default(), ProgressTimer::default());
        Self { limits, fetching, handlers: Vec::new(), checkpoint }
    }

    /// Looks once, and says what to do. At most one remedy at a time: the strongest.
    pub fn look(&mut self, now_ms: u64, sight: ShardActivity<'_>) -> Option<StuckShard> {
        let found = [
            self.check_fetching(now_ms, sight.fetching),
            self.check_handlers(now_ms, sight.handlers),
            self.check_checkpoint(now_ms, sight.checkpoint),
        ];
        let strength = |stuck: &StuckShard| match stuck.remedy {
            WatchdogAction::Report => 0,
            WatchdogAction::Restart => 1,
            WatchdogAction::Release => 2,
        };
        found.into_iter().flatten().max_by_key(strength)
    }

    /// What stands for longer than it may, and for how many milliseconds. `fetching` is the phase
    /// that fetching is in.
    pub fn stuck_phase(
        &self,
        now_ms: u64,
        fetching: Option<ReadPhase>,
    ) -> Option<(ReadPhase, u64)> {
        let over = |phase: ReadPhase, still: &ProgressTimer| {
            Some((phase, still.over(now_ms, self.limits.of(phase))?))
        };
        let fetch = fetching.and_then(|phase| over(phase, &self.fetching));
        let handlers = self.handlers.iter().filter_map(|still| over(ReadPhase::Handler, still));
        let checkpoint = over(ReadPhase::Checkpoint, &self.checkpoint);
        fetch.into_iter().chain(handlers).chain(checkpoint).max_by_key(|(_, for_ms)| *for_ms)
    }

    fn check_fetching(
        &mut self,
        now_ms: u64,
        seen: Option<(ReadPhase, u64)>,
    ) -> Option<StuckShard> {
        let phase = seen.map_or(ReadPhase::Fetch, |(phase, _)| phase);
        let mark = seen.map(|(_, mark)| mark);
        let for_ms = self.fetching.check(now_ms, mark, self.limits.of(phase))?;
        let remedy = self.fetching.next_action(now_ms, self.limits.restarts);
        Some(StuckShard { phase, for_ms, remedy })
    }

    fn check_handlers(&mut self, now_ms: u64, marks: &[Option<u64>]) -> Option<StuckShard> {
        let (limits, phase) = (&self.limits, ReadPhase::Handler);
        self.handlers.resize(marks.len(), ProgressTimer::default());
        let mut worst: Option<StuckShard> = None;
        for (still, mark) in self.handlers.iter_mut().zip(marks) {
            let Some(for_ms) = still.check(now_ms, *mark, limits.handler_ms) else { continue };
            let remedy = if limits.drop_handlers {
                still.next_action(now_ms, limits.restarts)
            } else {
                WatchdogAction::Report
            };
            if worst.is_none_or(|worst| worst.for_ms < for_ms) {
                worst = Some(StuckShard { phase, for_ms, remedy });
            }
        }
        worst
    }

    fn check_checkpoint(&mut self, now_ms: u64, mark: Option<u64>) -> Option<StuckShard> {
        let for_ms = self.checkpoint.check(now_ms, mark, self.limits.checkpoint_ms)?;
        // The shard tries to write again by itself, so a restart would add nothing.
        let first = self.checkpoint.told == 1;
        let remedy = if first { WatchdogAction::Report } else { WatchdogAction::Release };
        Some(StuckShard { phase: ReadPhase::Checkpoint, for_ms, remedy })
    }
}

#[cfg(test)]
mod tests;
