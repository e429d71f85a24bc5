//! Retries one conditional write, with the same nonce, until its result is known.
//!
//! ```text
//! write ─┬─ applied ───────────────────────────► Applied
//!        ├─ refused, first attempt ────────────► Refused
//!        ├─ refused, earlier one in doubt ─┐
//!        ├─ no answer, unknown ────────────┴─ read back ─ resolve ─┬─► Applied | Refused
//!        └─ throttled, unreachable ─┐                              └─ may still be applied ─┐
//!              ▲                    └──────────── pause, until the deadline ◄───────────────┘
//! ```
//!
//! At the deadline the result is `Unknown`, or `Failed` if no attempt is in doubt.

use super::store::{LeaseStore, StoreError};
use crate::clock::{Clock, Rng};
use anabranch_model::lease::{Resolution, StoredRow, Write, WriteOutcome, WriteRefusal, resolve};

/// Base pause before the second attempt, in milliseconds. It doubles with each attempt.
const FIRST_PAUSE_MS: u64 = 50;

/// Maximum base pause between two attempts, in milliseconds.
const LONGEST_PAUSE_MS: u64 = 1_000;

/// The result of a write.
#[derive(Debug)]
#[must_use]
pub(crate) enum WriteResult {
    /// The write was applied. Carries the row after it.
    Applied(StoredRow),
    /// The write was refused.
    Refused {
        /// The part of the condition that was false.
        why: WriteRefusal,
        /// The row that caused the refusal.
        now: StoredRow,
    },
    /// The deadline passed, and an attempt may have been applied or may still be.
    Unknown,
    /// No attempt was applied or will be.
    Failed(StoreError),
}

/// Parameters of a retried write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRetry<'a> {
    pub(crate) clock: &'a Clock,
    /// Jitter of the pauses.
    pub(crate) chance: &'a Rng,
    /// Time limit of one call, in milliseconds.
    pub(crate) call_ms: u64,
}

/// The result of one attempt.
enum RetryStep {
    Resolved(WriteResult),
    /// An attempt may still be applied.
    InDoubt,
    /// This attempt failed, and will not be applied.
    ConditionFailed(StoreError),
}

impl WriteRetry<'_> {
    /// Sends the write until its result is known or `until_ms()` is reached. The deadline may move.
    /// The first attempt is always sent.
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

    /// Resolves a refused attempt by the row: an earlier attempt may have been applied.
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
                // The next attempt is refused again, and reads the row again.
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

    /// Returns the answer of the call, or `None` if it exceeds the time limit.
    async fn with_timeout<T>(self, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = self.clock.sleep(self.call_ms) => None,
        }
    }
}

/// Returns the part of the write's condition that is false for the row `now`.
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
