//! What happened in a world, in order: what checkers judge, and what a failing seed prints.

use crate::clock::WorldClock;
use crate::record_source::SimRecord;
use anabranch::event::Event;
use anabranch_model::lease::{LeaseKey, LeaseToken, Write, WriteOutcome};
use anabranch_model::position::Position;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which host, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One thing that happened.
#[derive(Clone, PartialEq, Debug)]
pub struct HistoryLine {
    /// When, in the world's time.
    pub at_ms: u64,
    /// Where; the world itself without a host.
    pub host: Option<HostId>,
    /// What.
    pub what: HistoryEvent,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum HistoryEvent {
    /// The world did something, in words.
    World(String),
    /// The library told of something.
    LibraryReported(Event),
    /// A write of this host reached the store.
    WriteApplied {
        /// As it was sent.
        write: Write,
        /// As it ended there.
        outcome: WriteOutcome,
    },
    /// A reader began with a shard.
    Began {
        /// Under which hold.
        hold: LeaseToken,
        /// Behind which position.
        from: Position,
    },
    /// A reader handed a record to its handler.
    Delivered {
        /// Under which hold.
        hold: LeaseToken,
        /// The number of the record in its shard.
        number: u64,
    },
    /// The library told a reader that its checkpoint is stored.
    Checkpointed {
        /// Under which hold.
        hold: LeaseToken,
        /// The checkpoint.
        at: Position,
    },
    /// A reader let go of a shard.
    StoppedReading {
        /// Under which hold.
        hold: LeaseToken,
        /// In which way, in words.
        how: String,
    },
    /// A record was put into the stream.
    Put(Arc<SimRecord>),
    /// Shards were closed, and others follow them.
    Resharded {
        /// The ones that were closed.
        closed: Vec<LeaseKey>,
        /// The ones that follow.
        opened: Vec<LeaseKey>,
    },
    /// The retention of everything that was put so far is over.
    Trimmed,
    /// A record lies before the start of the application, so that it need not be delivered.
    Skipped(Arc<SimRecord>),
    /// A handler is called with this many records, which are handed to it in the next lines.
    Called {
        /// Under which hold.
        hold: LeaseToken,
        /// How many.
        records: usize,
    },
    /// The consumer handed a record to its handler.
    Handed {
        /// Under which hold.
        hold: LeaseToken,
        /// The record.
        grain: Arc<SimRecord>,
    },
    /// The handler's call returned.
    Handled {
        /// Under which hold.
        hold: LeaseToken,
        /// The record.
        grain: Arc<SimRecord>,
        /// Whether it is done; if not, it comes again.
        done: bool,
    },
    /// The library put a record aside, and it is not whole among the dead letters.
    LostLetter {
        /// The record.
        grain: Arc<SimRecord>,
    },
    /// The host stood still until now, and so did its clock.
    Paused {
        /// Since when, in the world's time.
        since_ms: u64,
    },
    /// A handler had its shard read again from its last checkpoint.
    StartedOver(LeaseKey),
    /// Records arrived at a host, for the sessions that read their shards there.
    Arrived(Vec<Arc<SimRecord>>),
    /// A handler was given what was never put, or without a lease that its worker took.
    Corrupted {
        /// Of which lease.
        lease: LeaseKey,
        /// What, in words.
        words: String,
    },
    /// A worker holds more bytes of records than ever before in its life.
    Holds {
        /// How many.
        bytes: usize,
        /// How many it may hold.
        most: usize,
    },
}

/// A hold in a few words.
pub fn brief(hold: &LeaseToken) -> String {
    format!("{} term {} of {}", hold.key, hold.term, hold.owner)
}

impl fmt::Display for HistoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9} ", SecondsDisplay(self.at_ms))?;
        match self.host {
            Some(host) => write!(f, "{host:<5} "),
            None => write!(f, "world "),
        }?;
        match &self.what {
            HistoryEvent::World(words) => f.write_str(words),
            HistoryEvent::LibraryReported(event) => write!(f, "{event:?}"),
            HistoryEvent::WriteApplied { write, outcome } => {
                write!(f, "{write:?} → {}", ended(outcome))
            }
            HistoryEvent::Began { hold, from } => write!(f, "begins {} behind {from}", brief(hold)),
            HistoryEvent::Delivered { hold, number } => {
                write!(f, "delivers {number} of {}", brief(hold))
            }
            HistoryEvent::Checkpointed { hold, at } => {
                write!(f, "has {at} stored for {}", brief(hold))
            }
            HistoryEvent::StoppedReading { hold, how } => {
                write!(f, "lets go of {}: {how}", brief(hold))
            }
            HistoryEvent::Put(grain) => {
                write!(f, "puts {grain} into {} at {}", grain.shard, grain.at)
            }
            HistoryEvent::Resharded { closed, opened } => {
                write!(f, "reshards {} into {}", named(closed), named(opened))
            }
            HistoryEvent::Trimmed => write!(f, "retention passes for all that was put so far"),
            HistoryEvent::Skipped(grain) => {
                write!(f, "need not deliver {grain} of {}", grain.shard)
            }
            HistoryEvent::Called { hold, records } => {
                write!(f, "calls the handler with {records} records of {}", brief(hold))
            }
            HistoryEvent::Handed { hold, grain } => write!(f, "hands {grain} of {}", brief(hold)),
            HistoryEvent::Handled { hold, grain, done: true } => {
                write!(f, "is done with {grain} of {}", brief(hold))
            }
            HistoryEvent::Handled { hold, grain, done: false } => {
                write!(f, "fails with {grain} of {}", brief(hold))
            }
            HistoryEvent::LostLetter { grain } => write!(f, "loses {grain}, which was put aside"),
            HistoryEvent::Paused { since_ms } => {
                write!(f, "goes on, and knows nothing of {} ms", self.at_ms - since_ms)
            }
            HistoryEvent::StartedOver(lease) => write!(f, "starts {lease} over"),
            HistoryEvent::Arrived(grains) => {
                let grains: Vec<String> = grains.iter().map(ToString::to_string).collect();
                write!(f, "receives {}", grains.join(", "))
            }
            HistoryEvent::Corrupted { lease, words } => write!(f, "hands {words} of {lease}"),
            HistoryEvent::Holds { bytes, most } => write!(f, "holds {bytes} bytes of {most}"),
        }
    }
}

fn named(shards: &[LeaseKey]) -> String {
    shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn ended(outcome: &WriteOutcome) -> String {
    match outcome {
        WriteOutcome::Done(_) => "done".to_owned(),
        WriteOutcome::Refused { why, .. } => format!("refused: {why}"),
        WriteOutcome::Unknown => "unknown".to_owned(),
    }
}

struct SecondsDisplay(u64);

impl fmt::Display for SecondsDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:03}", self.0 / 1_000, self.0 % 1_000))
    }
}

/// The history of one world. Clones share it.
#[derive(Clone, Debug)]
pub struct History {
    /// The world's time.
    clock: WorldClock,
    /// All lines so far.
    lines: Arc<Mutex<Vec<HistoryLine>>>,
}

impl History {
    /// An empty history.
    pub fn new(clock: WorldClock) -> Self {
        Self { clock, lines: Arc::default() }
    }

    /// Notes what happened on a host, or with what a host had sent.
    pub fn note(&self, host: HostId, what: HistoryEvent) {
        self.push(Some(host), what);
    }

    /// Notes what the world did.
    pub fn note_world(&self, words: impl Into<String>) {
        self.push(None, HistoryEvent::World(words.into()));
    }

    /// Notes what happened to the stream.
    pub fn note_what(&self, what: HistoryEvent) {
        self.push(None, what);
    }

    fn push(&self, host: Option<HostId>, what: HistoryEvent) {
        let line = HistoryLine { at_ms: self.clock.now_ms(), host, what };
        self.lines().push(line);
    }

    /// Whether something like this happened.
    pub fn any(&self, like: impl Fn(&HistoryEvent) -> bool) -> bool {
        self.lines().iter().any(|line| like(&line.what))
    }

    /// All lines, taken out.
    pub fn take(&self) -> Vec<HistoryLine> {
        std::mem::take(&mut *self.lines())
    }

    fn lines(&self) -> MutexGuard<'_, Vec<HistoryLine>> {
        // Lines are pushed whole, so a panic elsewhere leaves no half of one.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
