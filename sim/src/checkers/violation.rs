//! Violations: a broken guarantee, and the part of the history that shows it.

use crate::history::{HistoryEvent, HistoryLine};
use anabranch_model::lease::{LeaseKey, LeaseToken, Write};
use std::fmt::Write as _;

/// Maximum number of history lines in a report.
const SHOWN: usize = 60;

/// A guarantee that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The guarantee.
    pub promise: &'static str,
    /// Description of the violation.
    pub words: String,
    /// Index of the history line that broke it.
    pub line: usize,
    /// Lease concerned, if any.
    pub lease: Option<LeaseKey>,
}

/// Creates a violation by a delivery under this lease token.
pub(super) fn of_grain(
    promise: &'static str,
    words: String,
    line: usize,
    hold: &LeaseToken,
) -> Violation {
    Violation { promise, words, line, lease: Some(hold.key.clone()) }
}

impl Violation {
    /// Formats the violation with the relevant lines before it: actions of the world, and events of
    /// the lease. Only the first and the last of consecutive similar lines are shown.
    pub fn report(&self, lines: &[HistoryLine]) -> String {
        let end = lines.len().min(self.line + 1);
        let mut shown: Vec<&HistoryLine> = Vec::new();
        for line in lines[..end].iter().filter(|line| self.is_about(line)) {
            if let [.., before, last] = shown.as_slice()
                && goes_on(before, last)
                && goes_on(last, line)
            {
                shown.pop();
            }
            shown.push(line);
        }
        let mut text = format!("{}: {}\n", self.promise, self.words);
        for line in shown.iter().skip(shown.len().saturating_sub(SHOWN)) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    fn is_about(&self, line: &HistoryLine) -> bool {
        let Some(lease) = &self.lease else {
            return !matches!(line.what, HistoryEvent::Delivered { .. });
        };
        match &line.what {
            HistoryEvent::Resharded { closed, opened } => {
                closed.contains(lease) || opened.contains(lease)
            }
            HistoryEvent::Put(grain)
            | HistoryEvent::Skipped(grain)
            | HistoryEvent::LostLetter { grain } => grain.shard == *lease,
            HistoryEvent::Arrived(grains) => grains.iter().any(|grain| grain.shard == *lease),
            HistoryEvent::StartedOver(of) | HistoryEvent::Corrupted { lease: of, .. } => {
                of == lease
            }
            HistoryEvent::World(_)
            | HistoryEvent::Paused { .. }
            | HistoryEvent::Crashed { .. }
            | HistoryEvent::Trimmed
            | HistoryEvent::WriteApplied { write: Write::Worker { .. }, .. } => true,
            HistoryEvent::WriteApplied { write: Write::Lease { key, .. }, .. } => key == lease,
            HistoryEvent::Holds { .. }
            | HistoryEvent::WriteApplied { write: Write::Stream { .. }, .. } => false,
            HistoryEvent::LibraryReported(event) => {
                format!("{event:?}").contains(lease.shard.as_str())
            }
            HistoryEvent::Began { hold, .. }
            | HistoryEvent::Delivered { hold, .. }
            | HistoryEvent::Called { hold, .. }
            | HistoryEvent::Handed { hold, .. }
            | HistoryEvent::Handled { hold, .. }
            | HistoryEvent::Checkpointed { hold, .. }
            | HistoryEvent::StoppedReading { hold, .. } => hold.key == *lease,
        }
    }
}

/// Returns true if the second line only continues the activity of the first.
fn goes_on(first: &HistoryLine, second: &HistoryLine) -> bool {
    match (&first.what, &second.what) {
        (HistoryEvent::Delivered { hold, .. }, HistoryEvent::Delivered { hold: other, .. })
        | (
            HistoryEvent::Handed { hold, .. } | HistoryEvent::Handled { hold, .. },
            HistoryEvent::Handed { hold: other, .. } | HistoryEvent::Handled { hold: other, .. },
        ) => hold == other,
        (HistoryEvent::Put(one), HistoryEvent::Put(other)) => one.shard == other.shard,
        _ => false,
    }
}
