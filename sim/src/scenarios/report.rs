//! What one seed came to.

use crate::checkers::Violation;
use crate::faults::FaultCounts;
use crate::history::{HistoryEvent, HistoryLine};
use std::fmt::Write as _;

/// What one seed came to.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// Which seed.
    pub seed: u64,
    /// The one command that replays it.
    pub replay: String,
    /// What happened.
    pub lines: Vec<HistoryLine>,
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
    /// How long the world ran, in its own time.
    pub virtual_ms: u64,
    /// What went wrong on purpose.
    pub faults: FaultCounts,
    /// What was drawn for its fleet, in words.
    pub drawn: Vec<String>,
    /// How often a lease changed hands.
    pub moves: u64,
    /// How many records a producer placed.
    pub placed: u64,
    /// How many records were delivered.
    pub deliveries: u64,
}

impl SeedReport {
    /// A seed whose run itself panicked.
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

    /// The broken promise with the lines that matter, and the one command that replays it.
    pub fn failure_text(&self) -> Option<String> {
        let violation = self.violation.as_ref()?;
        let seed = self.seed;
        let story = violation.report(&self.lines);
        Some(format!("seed {seed}: {story}  replay: {}", self.replay))
    }

    /// The line of the first thing like this that happened.
    pub fn first(&self, like: impl Fn(&HistoryEvent) -> bool) -> Option<usize> {
        self.lines.iter().position(|line| like(&line.what))
    }

    /// The whole history as text.
    pub fn history(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{line}");
        }
        text
    }
}
