//! Detection of stuck shards, and the action to take.
//!
//! A watcher checks a shard periodically. Each activity has a *mark*, a counter that changes when
//! the activity makes progress. The age of a mark is measured by the watcher's own checks, so the
//! activity itself reads no clock.
//!
//! | phase                    | unchanged for its limit     | unchanged again                   |
//! |--------------------------|-----------------------------|-----------------------------------|
//! | iterator, fetch, decode  | restart                     | restart, finally release          |
//! | handler                  | report, or restart if set   | the same, finally release if set  |
//! | checkpoint               | report                      | release                           |

use std::fmt;

/// A phase of reading a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadPhase {
    /// Waiting for a position to read from: an iterator, or a subscription.
    Iterator,
    /// Waiting for records.
    Fetch,
    /// Deaggregating records.
    Decode,
    /// The handler has records, a processor is initialized or gets the end of its shard, or a
    /// shard's stream waits to be taken.
    Handler,
    /// Processed records are not yet checkpointed.
    Checkpoint,
}

impl ReadPhase {
    /// Returns the phase's name in logs and metrics.
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

/// Time in milliseconds for which each phase may be stuck, and the action afterwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchdogLimits {
    /// Maximum time without an iterator or a subscription. Default 60,000.
    pub iterator_ms: u64,
    /// Maximum time without a reply, including empty ones. Default 60,000, which is longer than one
    /// call may take.
    pub fetch_ms: u64,
    /// Maximum time to deaggregate one reply. Default 60,000.
    pub decode_ms: u64,
    /// Maximum time for a call of the handler, or of a processor's `initialize` or `shard_ended`.
    /// Also the maximum time in which a shard's stream must be taken, or its last records acked.
    /// Default 300,000.
    pub handler_ms: u64,
    /// Maximum time in which processed records are not checkpointed. Default 60,000.
    pub checkpoint_ms: u64,
    /// True if a stuck handler is dropped and its records are redelivered. A stuck `shard_ended` is
    /// repeated. For a stuck `initialize`, the shard is released and taken again after a pause.
    /// Default false: it is only reported.
    pub drop_handlers: bool,
    /// Number of consecutive restarts without progress after which the shard is released to another
    /// worker. Default 2.
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
    /// Returns the limit of a phase.
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

/// Activities of a shard at one check.
#[derive(Clone, Copy, Default, Debug)]
pub struct ShardActivity<'a> {
    /// Phase and mark of fetching; `None` while it waits for permits, for the lanes or for the next
    /// poll.
    pub fetching: Option<(ReadPhase, u64)>,
    /// Mark of each running handler.
    pub handlers: &'a [Option<u64>],
    /// Mark of the checkpoints, while processed records are not checkpointed.
    pub checkpoint: Option<u64>,
}

/// Action for a stuck shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchdogAction {
    /// Only report it.
    Report,
    /// Restart the reading at its current position.
    Restart,
    /// Release the lease, once no handler runs.
    Release,
}

/// A stuck shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StuckShard {
    /// Phase in which it is stuck.
    pub phase: ReadPhase,
    /// Time without progress, in milliseconds.
    pub for_ms: u64,
    /// Action to take.
    pub remedy: WatchdogAction,
}

/// Detects the lack of progress in one shard.
#[derive(Clone, Debug)]
pub struct StuckDetector {
    limits: WatchdogLimits,
    /// Timer of fetching.
    fetching: ProgressTimer,
    /// Timer of each lane's handler.
    handlers: Vec<ProgressTimer>,
    /// Timer of the checkpoints.
    checkpoint: ProgressTimer,
}

/// A mark, and the time since it last changed.
#[derive(Clone, Copy, Default, Debug)]
struct ProgressTimer {
    /// Last mark that was seen.
    mark: Option<u64>,
    /// True if there was something to do at the last check.
    busy: bool,
    /// Start of the time without progress, or the time of the last action.
    since_ms: u64,
    /// Start of the time without progress, regardless of actions.
    first_ms: u64,
    /// Number of reports since the last action.
    told: u32,
    /// Restarts since the last progress.
    restarts: u32,
}

impl ProgressTimer {
    /// Checks a mark, which is `None` while there is nothing to do. Returns the time without
    /// progress if it exceeds the limit and a report is due.
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
        // Reports at the limit, then at twice and four times the limit, instead of at every check.
        let due_ms = limit_ms.saturating_mul(1 << self.told.min(16));
        if now_ms.saturating_sub(self.since_ms) < due_ms {
            return None;
        }
        self.told = self.told.saturating_add(1);
        Some(now_ms.saturating_sub(self.first_ms))
    }

    /// Returns the next action. It gets the whole limit again to take effect.
    fn next_action(&mut self, now_ms: u64, most: u32) -> WatchdogAction {
        (self.since_ms, self.told) = (now_ms, 0);
        if self.restarts >= most {
            self.restarts = 0;
            return WatchdogAction::Release;
        }
        self.restarts += 1;
        WatchdogAction::Restart
    }

    /// Returns the time without progress if it exceeds the limit.
    fn over(&self, now_ms: u64, limit_ms: u64) -> Option<u64> {
        let for_ms = now_ms.saturating_sub(self.first_ms);
        (self.busy && for_ms >= limit_ms).then_some(for_ms)
    }
}

impl StuckDetector {
    /// Creates a detector without observations.
    pub fn new(limits: WatchdogLimits) -> Self {
        let (fetching, checkpoint) = (ProgressTimer::default(), ProgressTimer::default());
        Self { limits, fetching, handlers: Vec::new(), checkpoint }
    }

    /// Checks the shard once and returns the action to take. Returns at most one action: the
    /// strongest.
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

    /// Returns the phase that exceeds its limit for longest, and its time without progress in
    /// milliseconds. `fetching` is the current phase of fetching.
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
        // The shard retries the write by itself, so a restart would add nothing.
        let first = self.checkpoint.told == 1;
        let remedy = if first { WatchdogAction::Report } else { WatchdogAction::Release };
        Some(StuckShard { phase: ReadPhase::Checkpoint, for_ms, remedy })
    }
}

#[cfg(test)]
mod tests;
