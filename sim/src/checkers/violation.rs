//! A broken promise, and the part of the history that shows it.

use crate::history::{HistoryEvent, HistoryLine};
use anabranch_model::lease::{LeaseKey, LeaseToken, Write};
use std::fmt::Write as _;

/// How many lines of the history a report shows.
const SHOWN: usize = 60;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which promise.
    pub promise: &'static str,
    /// How it was broken.
    pub words: String,
    /// The line of the history that broke it.
    pub line: usize,
    /// The lease that it is about, if it is about one.
    pub lease: Option<LeaseKey>,
}

/// A promise that a delivery under this hold broke.
pub(super) fn of_grain(
    promise: &'static str,
    words: String,
    line: usize,
    hold: &LeaseToken,
) -> Violation {
    Violation { promise, words, line, lease: Some(hold.key.clone()) }
}

impl Violation {
    /// The broken promise with the lines before it that matter: what the world did, and what
    /// happened to the lease. Of a run of deliveries only the first and the last are shown.
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
            // Writing to a string can't fail.
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

/// Whether the second line only goes on with what the first one does.
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
