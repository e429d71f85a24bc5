//! Counts of put outcomes, with progress display, summary and exit status.

use super::send::RecordOrigin;
use crate::failure::CommandFailure;
use crate::output::{print_line, print_note};
use crate::time_spec;
use anabranch::clock::Clock;
use anabranch::producer::{OrderingKey, Outcome, ProducerId};
use anabranch_model::ids::StreamName;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Failures that are printed one by one. The rest is only counted.
const TOLD: u64 = 10;

/// Maximum stopped keys that are named.
const NAMED: usize = 10;

/// Outcome counts, shared by the task that puts and the one that waits for outcomes.
pub(crate) struct PutCounts {
    producer: ProducerId,
    placed: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    /// Bytes of placed data.
    bytes: AtomicU64,
    /// Keys that are stopped at the end.
    stopped: OnceLock<BTreeSet<OrderingKey>>,
    /// Start time.
    began_ms: u64,
    clock: Clock,
    /// Progress line on a terminal.
    bar: ProgressBar,
}

/// Summary for scripts.
#[derive(Debug, Serialize)]
struct PutReport<'a> {
    stream: &'a str,
    producer: &'a str,
    placed: u64,
    refused: u64,
    unknown: u64,
    bytes: u64,
    stopped_keys: Vec<&'a str>,
    seconds: f64,
}

impl PutCounts {
    pub(crate) fn new(producer: ProducerId, clock: Clock) -> Self {
        // It draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new_spinner();
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {human_pos} placed, {per_sec}, {elapsed} {msg}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            producer,
            placed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            stopped: OnceLock::new(),
            began_ms: clock.now_ms(),
            clock,
            bar,
        }
    }

    /// Counts an outcome.
    pub(super) fn count_outcome(&self, origin: &RecordOrigin, bytes: usize, outcome: &Outcome) {
        match outcome {
            Outcome::Placed { .. } => {
                self.placed.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                self.bar.inc(1);
            }
            Outcome::Rejected { why, .. } => self.refused(origin, &why.to_string()),
            Outcome::Unknown { .. } => {
                let count = self.unknown.fetch_add(1, Ordering::Relaxed);
                self.print_problem(
                    count,
                    origin,
                    "a reply was lost, so it is unknown whether the record is in the stream",
                );
            }
        }
    }

    /// Counts a refused record and prints the reason.
    pub(super) fn refused(&self, origin: &RecordOrigin, why: &str) {
        let count = self.refused.fetch_add(1, Ordering::Relaxed);
        self.print_problem(count, origin, why);
    }

    /// Counts a refused line whose reason is printed elsewhere.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn print_problem(&self, count: u64, origin: &RecordOrigin, why: &str) {
        if count < TOLD {
            self.bar.suspend(|| print_note!("warning: {origin}: {why}"));
        } else if count == TOLD {
            self.bar.suspend(|| {
                print_note!("warning: further records that were not placed are only counted");
            });
        }
    }

    /// Removes the progress line and stores the stopped keys.
    pub(super) fn finish(&self, stopped: BTreeSet<OrderingKey>) {
        self.bar.finish_and_clear();
        let _ = self.stopped.set(stopped);
    }

    fn count(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }

    /// Prints the summary.
    pub(crate) fn report(&self, stream: &StreamName, json: bool) {
        let stopped = self.stopped.get().into_iter().flatten();
        let took_ms = self.clock.now_ms() - self.began_ms;
        let summary = PutReport {
            stream: stream.as_str(),
            producer: self.producer.as_str(),
            placed: Self::count(&self.placed),
            refused: Self::count(&self.refused),
            unknown: Self::count(&self.unknown),
            bytes: Self::count(&self.bytes),
            stopped_keys: stopped.map(|id| id.key.as_str()).collect(),
            seconds: seconds(took_ms),
        };
        if json {
            print_line!("{}", serde_json::to_string(&summary).unwrap_or_default());
            return;
        }
        print_note!(
            "{stream}: {} placed ({} bytes), {} refused, {} unknown, in {}",
            summary.placed,
            summary.bytes,
            summary.refused,
            summary.unknown,
            time_spec::span(took_ms)
        );
        if !summary.stopped_keys.is_empty() {
            let named: Vec<_> =
                summary.stopped_keys.iter().take(NAMED).map(|key| format!("{key:?}")).collect();
            let more = summary.stopped_keys.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            print_note!("keys stopped by a refused record: {}{more}", named.join(", "));
        }
    }

    /// Returns an error unless every record was placed.
    pub(crate) fn verdict(&self, stream: &StreamName) -> Result<(), CommandFailure> {
        match (Self::count(&self.refused), Self::count(&self.unknown)) {
            (0, 0) => Ok(()),
            (refused, 0) => {
                Err(CommandFailure::result(format!("{refused} records are not in {stream}")))
            }
            (refused, unknown) => Err(CommandFailure::result(format!(
                "{refused} records are not in {stream}, and {unknown} have an unknown outcome"
            ))),
        }
    }
}

/// Converts whole milliseconds. The result prints as written, without floating-point noise.
#[expect(clippy::cast_precision_loss, reason = "it counts as long as a put may last")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}
