//! The history of a world: events in order, which checkers judge and a failing seed prints.

use crate::clock::WorldClock;
use crate::record_source::SimRecord;
use anabranch::event::Event;
use anabranch_model::lease::{LeaseKey, LeaseToken, Write, WriteOutcome};
use anabranch_model::position::Position;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Index of a host.
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

/// One event.
#[derive(Clone, PartialEq, Debug)]
pub struct HistoryLine {
    /// Time of the event, in milliseconds of world time.
    pub at_ms: u64,
    /// Host of the event; `None` for the world itself.
    pub host: Option<HostId>,
    /// The event.
    pub what: HistoryEvent,
}

/// An event of a history.
#[derive(Clone, PartialEq, Debug)]
pub enum HistoryEvent {
    /// An action of the world, described in words.
    World(String),
    /// The library emitted an event.
    LibraryReported(Event),
    /// A write of this host reached the store.
    WriteApplied {
        /// The write as it was sent.
        write: Write,
        /// Its outcome in the store.
        outcome: WriteOutcome,
    },
    /// A reader began with a shard.
    Began {
        /// Lease token of the reader.
        hold: LeaseToken,
        /// Checkpoint at which the reader began.
        from: Position,
    },
    /// A reader delivered a record to its handler.
    Delivered {
        /// Lease token of the reader.
        hold: LeaseToken,
        /// Number of the record in its shard.
        number: u64,
    },
    /// The library acknowledged a reader's checkpoint as stored.
    Checkpointed {
        /// Lease token of the reader.
        hold: LeaseToken,
        /// The checkpoint.
        at: Position,
    },
    /// A reader stopped reading a shard.
    StoppedReading {
        /// Lease token of the reader.
        hold: LeaseToken,
        /// Reason, in words.
        how: String,
    },
    /// A record was put into the stream.
    Put(Arc<SimRecord>),
    /// Shards were closed and replaced by others.
    Resharded {
        /// Closed shards.
        closed: Vec<LeaseKey>,
        /// Their successors.
        opened: Vec<LeaseKey>,
    },
    /// A host crashed and lost its memory.
    Crashed {
        /// The host.
        host: HostId,
        /// Time until it boots again, in milliseconds; `None` if it never does.
        for_ms: Option<u64>,
    },
    /// Retention has removed everything that was put so far.
    Trimmed,
    /// A record that precedes the start of the application, so that it need not be delivered.
    Skipped(Arc<SimRecord>),
    /// A handler is called with several records, which the next lines hand out.
    Called {
        /// Lease token of the call.
        hold: LeaseToken,
        /// Number of records.
        records: usize,
    },
    /// The consumer handed a record to its handler.
    Handed {
        /// Lease token of the call.
        hold: LeaseToken,
        /// The record.
        grain: Arc<SimRecord>,
    },
    /// The handler's call returned.
    Handled {
        /// Lease token of the call.
        hold: LeaseToken,
        /// The record.
        grain: Arc<SimRecord>,
        /// True if the record is done; otherwise it is delivered again.
        done: bool,
    },
    /// The library dead-lettered a record, and it is missing or incomplete among the dead letters.
    LostLetter {
        /// The record.
        grain: Arc<SimRecord>,
    },
    /// The host and its clock were stopped until now.
    Paused {
        /// Start of the pause, in milliseconds of world time.
        since_ms: u64,
    },
    /// A handler had its shard read again from its last checkpoint.
    StartedOver(LeaseKey),
    /// Records arrived at a host, for the sessions that read their shards there.
    Arrived(Vec<Arc<SimRecord>>),
    /// A handler received a record that was never put, or without a lease that its worker took.
    Corrupted {
        /// Lease of the call.
        lease: LeaseKey,
        /// Description of the record.
        words: String,
    },
    /// A worker holds more bytes of records than ever before in its run.
    Holds {
        /// Bytes that it holds.
        bytes: usize,
        /// Bytes that it may hold.
        most: usize,
    },
}

/// Formats a lease token in a few words.
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
            HistoryEvent::Crashed { host, for_ms: Some(ms) } => {
                write!(f, "{host} crashes for {ms} ms")
            }
            HistoryEvent::Crashed { host, for_ms: None } => write!(f, "{host} dies for good"),
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
    /// World time.
    clock: WorldClock,
    /// All lines so far.
    lines: Arc<Mutex<Vec<HistoryLine>>>,
}

impl History {
    /// Creates an empty history.
    pub fn new(clock: WorldClock) -> Self {
        Self { clock, lines: Arc::default() }
    }

    /// Adds an event on a host, or of a write that the host had sent.
    pub fn note(&self, host: HostId, what: HistoryEvent) {
        self.push(Some(host), what);
    }

    /// Adds an action of the world.
    pub fn note_world(&self, words: impl Into<String>) {
        self.push(None, HistoryEvent::World(words.into()));
    }

    /// Adds an event of the stream.
    pub fn note_what(&self, what: HistoryEvent) {
        self.push(None, what);
    }

    fn push(&self, host: Option<HostId>, what: HistoryEvent) {
        let line = HistoryLine { at_ms: self.clock.now_ms(), host, what };
        self.lines().push(line);
    }

    /// Returns true if a matching event occurred.
    pub fn any(&self, like: impl Fn(&HistoryEvent) -> bool) -> bool {
        self.lines().iter().any(|line| like(&line.what))
    }

    /// Removes and returns all lines.
    pub fn take(&self) -> Vec<HistoryLine> {
        std::mem::take(&mut *self.lines())
    }

    fn lines(&self) -> MutexGuard<'_, Vec<HistoryLine>> {
        // Lines are pushed whole, so a panic elsewhere leaves no partial line.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
