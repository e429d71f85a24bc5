//! The result of one seed.

use crate::checkers::Violation;
use crate::faults::FaultCounts;
use crate::history::{HistoryEvent, HistoryLine};
use std::fmt::Write as _;

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Command that replays it.
    pub replay: String,
    /// The history.
    pub lines: Vec<HistoryLine>,
    /// First guarantee that was broken, if any.
    pub violation: Option<Violation>,
    /// Duration of the run, in milliseconds of world time.
    pub virtual_ms: u64,
    /// Injected faults.
    pub faults: FaultCounts,
    /// Options drawn for the fleet.
    pub drawn: Vec<String>,
    /// Number of times that a lease changed hands.
    pub moves: u64,
    /// Number of records that producers placed.
    pub placed: u64,
    /// Number of records that were delivered.
    pub deliveries: u64,
}

impl SeedReport {
    /// Creates the report of a seed whose run panicked.
    pub fn panicked(seed: u64, replay: String, words: &str) -> Self {
        let violation =
            Violation { promise: "nothing panics", words: words.to_owned(), line: 0, lease: None };
        Self {
            seed,
            replay,
            lines: Vec::new(),
            violation: Some(violation),
            virtual_ms: 0,
            faults: FaultCounts::default(),
            drawn: Vec::new(),
            moves: 0,
            placed: 0,
            deliveries: 0,
        }
    }

    /// Formats the violation with the relevant history lines and the command that replays it.
    pub fn failure_text(&self) -> Option<String> {
        let violation = self.violation.as_ref()?;
        let seed = self.seed;
        let story = violation.report(&self.lines);
        Some(format!("seed {seed}: {story}  replay: {}", self.replay))
    }

    /// Returns the index of the first matching event.
    pub fn first(&self, like: impl Fn(&HistoryEvent) -> bool) -> Option<usize> {
        self.lines.iter().position(|line| like(&line.what))
    }

    /// Formats the whole history.
    pub fn history(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
        }
        text
    }
}
