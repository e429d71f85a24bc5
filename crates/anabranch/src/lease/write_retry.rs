//! Carries one write to its end: sent again with the same nonce, and resolved by what the row holds.
//!
//! ```text
//! write ─┬─ done ───────────────────────────► Applied
//!        ├─ refused, first copy ────────────► Refused
//!        ├─ refused, a copy sent before ─┐
//!        ├─ no answer, unknown ──────────┴─ read back ─ resolve ─┬─► Applied | Refused
//!        └─ throttled, unreachable ─┐                            └─ may still land ─┐
//!              ▲                    └───────────── pause, until the time is over ◄──┘
//! ```

use super::store::{LeaseStore, StoreError};
use crate::clock::{Clock, Rng};
use anabranch_model::lease::{Resolution, StoredRow, Write, WriteOutcome, WriteRefusal, resolve};

/// The pause before the first repetition, in milliseconds. Each one doubles it.
const FIRST_PAUSE_MS: u64 = 50;

/// The longest pause before a repetition, in milliseconds.
const LONGEST_PAUSE_MS: u64 = 1_000;

/// How a write ended.
#[derive(Debug)]
#[must_use]
pub(crate) enum WriteResult {
    /// The row holds it. Here is the row.
    Applied(StoredRow),
    /// It was refused.
    Refused {
        /// Which part of its condition was false.
        why: WriteRefusal,
        /// The row as it stood.
        now: StoredRow,
    },
    /// The time was over, and a copy of it may have landed or may still land.
    Unknown,
    /// No copy of it was applied or will be.
    Failed(StoreError),
}

/// How to carry a write to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRetry<'a> {
    /// The time.
    pub(crate) clock: &'a Clock,
    /// The jitter of pauses.
    pub(crate) chance: &'a Rng,
    /// The longest that one call is waited for.
    pub(crate) call_ms: u64,
}

/// What one more call taught.
enum RetryStep {
    Resolved(WriteResult),
    /// A copy may be on its way.
    InDoubt,
    /// This copy was not applied and won't be.
    ConditionFailed(StoreError),
}

impl WriteRetry<'_> {
    /// Carries the write to its end. No copy is sent after the moment that `until_ms` gives, which
    /// may move, but for the first.
    pub(crate) async fn run<S: LeaseStore>(
        self,
        store: &S,
        write: &Write,
        until_ms: impl Fn() -> u64,
    ) -> WriteResult {
        let mut in_doubt = false;
        let mut pause_ms = FIRST_PAUSE_MS;
        loop {
            let failed = match self.send(store, write, in_doubt).await {
                RetryStep::Resolved(settled) => return settled,
                RetryStep::InDoubt => {
                    in_doubt = true;
                    None
                }
                RetryStep::ConditionFailed(error) => Some(error),
            };
            let next_ms = self.clock.now_ms() + pause_ms / 2 + self.chance.below(pause_ms);
            let give_up = next_ms >= until_ms();
            match failed {
                Some(error) if !in_doubt && (give_up || !error.is_retryable()) => {
                    return WriteResult::Failed(error);
                }
                _ if give_up => return WriteResult::Unknown,
                _ => {}
            }
            self.clock.sleep_until(next_ms).await;
            pause_ms = (pause_ms * 2).min(LONGEST_PAUSE_MS);
        }
    }

    async fn send<S: LeaseStore>(self, store: &S, write: &Write, in_doubt: bool) -> RetryStep {
        match self.with_timeout(store.write(write)).await {
            None | Some(Ok(WriteOutcome::Unknown)) => match self.read_back(store, write).await {
                Some((Resolution::Applied, row)) => RetryStep::Resolved(WriteResult::Applied(row)),
                Some((Resolution::NotApplied, now)) => RetryStep::Resolved(WriteResult::Refused {
                    why: refusal_of(store, write, &now),
                    now,
                }),
                Some((Resolution::StillUnknown, _)) | None => RetryStep::InDoubt,
            },
            Some(Ok(WriteOutcome::Done(row))) => RetryStep::Resolved(WriteResult::Applied(row)),
            Some(Ok(WriteOutcome::Refused { why, now })) => {
                self.refused(store, write, why, now, in_doubt).await
            }
            Some(Err(error)) => RetryStep::ConditionFailed(error),
        }
    }

    /// A refused repetition is judged by the row: its first copy may have landed.
    async fn refused<S: LeaseStore>(
        self,
        store: &S,
        write: &Write,
        why: WriteRefusal,
        now: Option<StoredRow>,
        in_doubt: bool,
    ) -> RetryStep {
        let now = match now {
            Some(now) => now,
            None => match self.with_timeout(store.read_back(write)).await {
                Some(Ok(now)) => now,
                // Asked again, a refusal is a refusal.
                Some(Err(_)) | None => return RetryStep::InDoubt,
            },
        };
        let applied = in_doubt && resolve(store.layout(), write, &now) == Resolution::Applied;
        RetryStep::Resolved(if applied {
            WriteResult::Applied(now)
        } else {
            WriteResult::Refused { why, now }
        })
    }

    async fn read_back<S: LeaseStore>(
        self,
        store: &S,
        write: &Write,
    ) -> Option<(Resolution, StoredRow)> {
        let row = self.with_timeout(store.read_back(write)).await?.ok()?;
        Some((resolve(store.layout(), write, &row), row))
    }

    /// What the call answers, or `None` if it takes too long.
    async fn with_timeout<T>(self, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = self.clock.sleep(self.call_ms) => None,
        }
    }
}

/// Which part of the condition of a write is false, by the row that was read.
fn refusal_of<S: LeaseStore>(store: &S, write: &Write, now: &StoredRow) -> WriteRefusal {
    match (write, now) {
        (Write::Lease { key, change, nonce }, _) => {
            let row = if let StoredRow::Lease(lease) = now { Some(&**lease) } else { None };
            store.layout().lease_after(key, change, *nonce, row).err()
        }
        (Write::Worker { .. }, StoredRow::Worker(worker)) if !worker.is_alive() => {
            Some(WriteRefusal::Fenced)
        }
        (Write::Worker { .. }, StoredRow::Worker(_)) => Some(WriteRefusal::CounterMoved),
        (Write::Worker { .. }, _) => Some(WriteRefusal::Missing),
        (Write::Stream { .. }, _) => Some(WriteRefusal::Exists),
    }
    .unwrap_or(WriteRefusal::TermMoved)
}
