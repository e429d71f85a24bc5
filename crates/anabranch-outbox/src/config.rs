//! What can be set on a relay, with default and bound.

use crate::database::Database;
use crate::leadership::TAKEOVER_MIN_MS;
use crate::read::ReadLimit;
use crate::table::OutboxTable;
use anabranch::clock::{Clock, Rng};
use anabranch::event::Events;
use anabranch::producer::{Producer, ProducerBuilder};
use std::time::Duration;

/// The longest takeover time: nobody waits longer for a relay that is gone.
const TAKEOVER_MAX_MS: u64 = 3_600_000;

/// What a row becomes in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowFormat {
    /// A JSON object with the event's id, headers and data: see [`crate::Envelope`].
    #[default]
    Envelope,
    /// The data alone. A reader can't tell a repeated row by its id then.
    Data,
}

/// Carries the rows of one table into one stream.
#[derive(Debug, Clone)]
pub struct Relay {
    /// The database.
    pub(crate) database: Database,
    /// The table.
    pub(crate) table: OutboxTable,
    /// The stream, for messages.
    pub(crate) stream: String,
    /// What a row becomes.
    pub(crate) format: RowFormat,
    /// How rows are put.
    pub(crate) producer: ProducerBuilder,
    /// How much one look takes.
    pub(crate) portion: ReadLimit,
    /// How many rows may be held at a time.
    pub(crate) max_held: usize,
    /// How often to look without being told.
    pub(crate) poll_ms: u64,
    /// How many rows are removed at a time, at the least.
    pub(crate) remove_rows: usize,
    /// How long a row that is in the stream waits for others to be removed with.
    pub(crate) remove_wait_ms: u64,
    /// How many keys may be parked before reading stops.
    pub(crate) max_parked: usize,
    /// How long a stop waits for rows that are on their way.
    pub(crate) drain: Duration,
    /// After which silence another relay takes over.
    pub(crate) takeover_ms: u64,
    /// How long the stream may take no row before another relay may try.
    pub(crate) stall_ms: u64,
    /// How often rows are looked for that came to lie behind the cursor.
    pub(crate) sweep_ms: u64,
    /// The time.
    pub(crate) clock: Clock,
    /// The random numbers.
    pub(crate) chance: Rng,
    /// Who hears of events.
    pub(crate) events: Events,
}

impl Relay {
    /// Carries the rows of `table` in `database` into `stream`.
    pub fn new(database: Database, table: OutboxTable, stream: &str) -> Self {
        Self {
            database,
            table,
            stream: stream.to_owned(),
            format: RowFormat::default(),
            producer: Producer::new(stream).with_buffer_bytes(16 << 20),
            portion: ReadLimit { rows: 2_000, bytes: 4 << 20 },
            max_held: 20_000,
            poll_ms: 1_000,
            remove_rows: 1_000,
            remove_wait_ms: 50,
            max_parked: 10_000,
            drain: Duration::from_secs(10),
            takeover_ms: 10_000,
            stall_ms: 60_000,
            sweep_ms: 60_000,
            clock: Clock::machine(),
            chance: Rng::of_system(),
            events: Events::none(),
        }
    }

    /// What a row becomes in the stream. Default: [`RowFormat::Envelope`].
    #[must_use]
    pub fn with_format(mut self, format: RowFormat) -> Self {
        self.format = format;
        self
    }

    /// How rows are put: aggregation, linger, rates and so on. Strict order and stopped keys are the
    /// relay's own. Default: the producer's, with a buffer of 16 MiB.
    #[must_use]
    pub fn with_producer(
        mut self,
        change: impl FnOnce(ProducerBuilder) -> ProducerBuilder,
    ) -> Self {
        self.producer = change(self.producer);
        self
    }

    /// How many rows, and bytes of their data and headers, are read at a time. Default 2,000 and
    /// 4 MiB; at least one row.
    #[must_use]
    pub fn with_read_limit(mut self, rows: u32, bytes: u32) -> Self {
        self.portion = ReadLimit { rows: i64::from(rows.max(1)), bytes: i64::from(bytes.max(1)) };
        self
    }

    /// How many rows may be under way at a time: what a crash can repeat. Default 20,000; at least
    /// one.
    #[must_use]
    pub fn with_max_held(mut self, rows: usize) -> Self {
        self.max_held = rows.max(1);
        self
    }

    /// How often to look for rows without being told of them, and for the lock. Default 1 s; at
    /// least 10 ms.
    #[must_use]
    pub fn with_poll(mut self, poll: Duration) -> Self {
        self.poll_ms = millis(poll).max(10);
        self
    }

    /// After which silence another relay takes over: the server ends a relay's session then, and the
    /// relay itself stops at four fifths of it. Default 10 s; one second to an hour.
    #[must_use]
    pub fn with_takeover_timeout(mut self, takeover: Duration) -> Self {
        self.takeover_ms = millis(takeover).clamp(TAKEOVER_MIN_MS, TAKEOVER_MAX_MS);
        self
    }

    /// How long the stream may take no row at all before the relay lets go, so that another one may
    /// try. Default 60 s; at least 100 ms.
    #[must_use]
    pub fn with_stall_timeout(mut self, stall: Duration) -> Self {
        self.stall_ms = millis(stall).max(100);
        self
    }

    /// How often rows are looked for that were restored behind the place where reading stands, which
    /// no insert does. Default one minute.
    #[must_use]
    pub fn with_sweep(mut self, sweep: Duration) -> Self {
        self.sweep_ms = millis(sweep);
        self
    }

    /// How many keys may be parked before reading stops. Default 10,000; at least one.
    #[must_use]
    pub fn with_max_blocked_keys(mut self, keys: usize) -> Self {
        self.max_parked = keys.max(1);
        self
    }

    /// How long a stop waits for rows that are on their way. Default 10 s.
    #[must_use]
    pub fn with_grace_period(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Who hears of events. Default: nobody.
    #[must_use]
    pub fn with_events(mut self, events: Events) -> Self {
        self.producer = self.producer.with_events(events.clone());
        self.events = events;
        self
    }

    /// The time. Default: the machine's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.producer = self.producer.with_clock(clock.clone());
        self.clock = clock;
        self
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
