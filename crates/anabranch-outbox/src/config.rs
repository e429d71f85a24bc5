//! Relay configuration: settings with their defaults and bounds.

use crate::database::Database;
use crate::leadership::TAKEOVER_MIN_MS;
use crate::read::ReadLimit;
use crate::table::OutboxTable;
use anabranch::clock::{Clock, Rng};
use anabranch::event::Events;
use anabranch::producer::{Producer, ProducerBuilder};
use std::time::Duration;

/// Longest takeover timeout, which bounds how long a failed relay blocks its successor.
const TAKEOVER_MAX_MS: u64 = 3_600_000;

/// Representation of a row in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowFormat {
    /// A JSON object with the event's id, headers and data. See [`crate::Envelope`].
    #[default]
    Envelope,
    /// The data alone. Consumers cannot recognize duplicates by id then.
    Data,
}

/// A relay that copies the rows of one table into one stream.
#[derive(Debug, Clone)]
pub struct Relay {
    pub(crate) database: Database,
    pub(crate) table: OutboxTable,
    /// Stream name, for messages.
    pub(crate) stream: String,
    pub(crate) format: RowFormat,
    /// Configuration of the producer that puts the rows.
    pub(crate) producer: ProducerBuilder,
    /// Maximum size of one read.
    pub(crate) portion: ReadLimit,
    /// Maximum number of rows in flight.
    pub(crate) max_held: usize,
    /// Poll interval without notifications.
    pub(crate) poll_ms: u64,
    /// Number of rows that triggers a removal.
    pub(crate) remove_rows: usize,
    /// Maximum time a sent row waits for its removal batch to fill.
    pub(crate) remove_wait_ms: u64,
    /// Number of blocked keys at which reading stops.
    pub(crate) max_parked: usize,
    /// Grace period at shutdown for rows in flight.
    pub(crate) drain: Duration,
    /// Silence after which another relay takes over.
    pub(crate) takeover_ms: u64,
    /// Time without an accepted row after which the relay gives up leadership.
    pub(crate) stall_ms: u64,
    /// Interval between sweeps for rows that appeared behind the cursor.
    pub(crate) sweep_ms: u64,
    pub(crate) clock: Clock,
    pub(crate) chance: Rng,
    pub(crate) events: Events,
}

impl Relay {
    /// Creates a relay from `table` in `database` to `stream`, with default settings.
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

    /// Sets the representation of a row in the stream. Default: [`RowFormat::Envelope`].
    #[must_use]
    pub fn with_format(mut self, format: RowFormat) -> Self {
        self.format = format;
        self
    }

    /// Changes the producer settings, such as aggregation, linger and rates. The relay itself sets
    /// strict key order and the policy for failed records. Default: the producer's defaults with a
    /// 16 MiB buffer.
    #[must_use]
    pub fn with_producer(
        mut self,
        change: impl FnOnce(ProducerBuilder) -> ProducerBuilder,
    ) -> Self {
        self.producer = change(self.producer);
        self
    }

    /// Sets the maximum rows, and bytes of their data and headers, per read. Default: 2,000 rows
    /// and 4 MiB. Minimum: one row.
    #[must_use]
    pub fn with_read_limit(mut self, rows: u32, bytes: u32) -> Self {
        self.portion = ReadLimit { rows: i64::from(rows.max(1)), bytes: i64::from(bytes.max(1)) };
        self
    }

    /// Sets the maximum number of rows in flight, which is also the number of rows that a crash can
    /// duplicate. Default: 20,000. Minimum: 1.
    #[must_use]
    pub fn with_max_held(mut self, rows: usize) -> Self {
        self.max_held = rows.max(1);
        self
    }

    /// Sets the interval at which the relay polls for rows without a notification, and for the
    /// lock. Default: 1 s. Minimum: 10 ms.
    #[must_use]
    pub fn with_poll(mut self, poll: Duration) -> Self {
        self.poll_ms = millis(poll).max(10);
        self
    }

    /// Sets the silence after which another relay takes over. The server then ends the silent
    /// relay's session. A relay stops sending after four fifths of it. Default: 10 s. Range: 1 s to
    /// 1 h.
    #[must_use]
    pub fn with_takeover_timeout(mut self, takeover: Duration) -> Self {
        self.takeover_ms = millis(takeover).clamp(TAKEOVER_MIN_MS, TAKEOVER_MAX_MS);
        self
    }

    /// Sets how long the stream may accept no row before the relay gives up leadership to let
    /// another relay try. Default: 60 s. Minimum: 100 ms.
    #[must_use]
    pub fn with_stall_timeout(mut self, stall: Duration) -> Self {
        self.stall_ms = millis(stall).max(100);
        self
    }

    /// Sets the interval between sweeps for rows that were restored behind the cursor. Inserts
    /// never create such rows. Default: 1 min.
    #[must_use]
    pub fn with_sweep(mut self, sweep: Duration) -> Self {
        self.sweep_ms = millis(sweep);
        self
    }

    /// Sets the number of blocked keys at which reading stops. Default: 10,000. Minimum: 1.
    #[must_use]
    pub fn with_max_blocked_keys(mut self, keys: usize) -> Self {
        self.max_parked = keys.max(1);
        self
    }

    /// Sets how long a shutdown waits for rows in flight. Default: 10 s.
    #[must_use]
    pub fn with_grace_period(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Sets the event listener. Default: none.
    #[must_use]
    pub fn with_events(mut self, events: Events) -> Self {
        self.producer = self.producer.with_events(events.clone());
        self.events = events;
        self
    }

    /// Sets the clock. Default: the machine's clock.
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
