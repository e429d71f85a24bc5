//! A broken promise, and the part of the history that shows it.

use crate::history::{Line, What};
use anabranch_model::lease::{LeaseToken, LeaseKey, Write};
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
    pub fn report(&self, lines: &[Line]) -> String {
        let end = lines.len().min(self.line + 1);
        let mut shown: Vec<&Line> = Vec::new();
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

    fn is_about(&self, line: &Line) -> bool {
        let Some(lease) = &self.lease else { return !matches!(line.what, What::Delivered { .. }) };
        match &line.what {
            What::Resharded { closed, opened } => closed.contains(lease) || opened.contains(lease),
            What::Put(grain) | What::Skipped(grain) | What::LostLetter { grain } => {
                grain.shard == *lease
            }
            What::Arrived(grains) => grains.iter().any(|grain| grain.shard == *lease),
            What::StartedOver(of) | What::Garbled { lease: of, .. } => of == lease,
            What::World(_)
            | What::Paused { .. }
            | What::Trimmed
            | What::Landed { write: Write::Worker { .. }, .. } => true,
            What::Landed { write: Write::Lease { key, .. }, .. } => key == lease,
            What::Holds { .. } | What::Landed { write: Write::Stream { .. }, .. } => false,
            What::Told(event) => format!("{event:?}").contains(lease.shard.as_str()),
            What::Began { hold, .. }
            | What::Delivered { hold, .. }
            | What::Called { hold, .. }
            | What::Handed { hold, .. }
            | What::Handled { hold, .. }
            | What::Checkpointed { hold, .. }
            | What::LetGo { hold, .. } => hold.key == *lease,
        }
    }
}

/// Whether the second line only goes on with what the first one does.
fn goes_on(first: &Line, second: &Line) -> bool {
    match (&first.what, &second.what) {
        (What::Delivered { hold, .. }, What::Delivered { hold: other, .. })
        | (
            What::Handed { hold, .. } | What::Handled { hold, .. },
            What::Handed { hold: other, .. } | What::Handled { hold: other, .. },
        ) => hold == other,
        (What::Put(one), What::Put(other)) => one.shard == other.shard,
        _ => false,
    }
}
