//! Leader term: the time from taking the lock to losing it or stopping.
//!
//! One task owns the session that holds the lock, and reads rows and blocks keys in it. When the
//! session is lost, everything read is discarded. The next leader starts from the contents of the
//! table.

mod removing;

use crate::blocked_keys;
use crate::blocked_keys::BlockedKeys;
use crate::config::{Relay, RowFormat};
use crate::database::DatabaseSession;
use crate::envelope;
use crate::error::RelayError;
use crate::in_flight::{InFlightRow, InFlightRows, WaitingRow};
use crate::lag;
use crate::leadership::LastRefusal;
use crate::listen::RowListener;
use crate::poll_schedule::{GATHER_MS, PollSchedule};
use crate::read::{FETCH_MAX_BYTES, OutboxRow, RowReader};
use crate::removal_queue::RemovalScheduler;
use crate::remove::RowRemover;
use crate::row_verdict::{RowVerdict, judge};
use crate::schema::TableSchema;
use crate::sweep::Sweep;
use anabranch::event::RelayEvent;
use anabranch::producer::{NewRecord, Outcome, Producer, PutError, TryPutError};
use anabranch_model::hash::HashKey;
use tokio_util::sync::CancellationToken;

/// Retry interval while the producer is full and no outcome is pending.
const ROOM_MS: u64 = 10;
/// Interval between lag reports, and between reads of the blocked keys, under load.
const REPORT_MS: u64 = 1_000;

/// Turn of reading, which alternates between all keys and resumed keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadTurn {
    /// The reader's turn, for all keys.
    Reader,
    /// The turn of a resumed key.
    Going,
}

/// One leader term of a relay.
pub(crate) struct LeaderTerm<'a> {
    /// Configuration.
    relay: &'a Relay,
    /// The session that holds the lock.
    link: DatabaseSession,
    reader: RowReader,
    producer: Producer,
    /// Reason for which the stream refuses the relay, if it does.
    refusal: LastRefusal,
    /// Rows held by this term.
    flight: InFlightRows,
    parked: BlockedKeys,
    /// Search for rows behind the cursor.
    sweep: Sweep,
    remover: RowRemover,
    /// Rows in the stream that are still to be removed.
    leaving: RemovalScheduler,
    /// Statement for the lag probe.
    glance: String,
    /// True if unread rows may exist.
    hungry: bool,
    /// Earliest time of the next read.
    read_at_ms: u64,
    /// The turn taken last.
    turn: ReadTurn,
    /// Deadline for starting the next removal batch.
    remove_at_ms: u64,
    /// Schedule of lag probes.
    looks: PollSchedule,
    /// Time of the last lag report.
    reported_ms: u64,
    /// Time of the last outcome, or of the last moment without rows at the producer.
    moved_ms: u64,
}

impl<'a> LeaderTerm<'a> {
    pub(crate) fn new(
        relay: &'a Relay,
        (link, remover): (DatabaseSession, RowRemover),
        shape: &TableSchema,
        (producer, refusal): (Producer, LastRefusal),
    ) -> Self {
        let table = &relay.table;
        Self {
            relay,
            link,
            reader: RowReader::new(table, shape),
            producer,
            refusal,
            flight: InFlightRows::default(),
            parked: BlockedKeys::default(),
            sweep: Sweep::new(table),
            remover,
            leaving: RemovalScheduler::default(),
            glance: lag::statement(table, shape),
            hungry: true,
            read_at_ms: 0,
            turn: ReadTurn::Going,
            remove_at_ms: 0,
            looks: PollSchedule::new(relay.poll_ms),
            reported_ms: 0,
            moved_ms: 0,
        }
    }

    /// Relays until it is stopped or fails.
    pub(crate) async fn run(
        mut self,
        ear: &RowListener,
        stop: &CancellationToken,
    ) -> Result<(), RelayError> {
        self.parked = BlockedKeys::of(blocked_keys::load(&mut self.link, &self.relay.table).await?);
        while !stop.is_cancelled() {
            self.hand_over().await?;
            let now_ms = self.now_ms();
            self.check_stream(now_ms)?;
            if now_ms >= self.link.ping_at_ms() {
                self.link.ping().await?;
            }
            if let Some(removal) = self.remover.done_now() {
                self.removed(removal?);
            }
            self.remove(now_ms);
            if self.looks.is_due(now_ms) {
                self.poll(now_ms).await?;
            }
            let may_read = self.hungry && self.has_room() && now_ms >= self.read_at_ms;
            let catches_up = self.parked.has_going() && self.has_space();
            let moved = match (may_read, catches_up) {
                (true, true) if self.turn == ReadTurn::Going => {
                    self.turn = ReadTurn::Reader;
                    self.read(now_ms).await?;
                    true
                }
                (_, true) => {
                    self.turn = ReadTurn::Going;
                    self.catch_up().await?;
                    true
                }
                (true, false) => self.read(now_ms).await?,
                (false, false) => false,
            };
            // After a read that added nothing, wait for outcomes: nothing else can make progress.
            if moved {
                continue;
            }
            let wake_ms = self.wake_ms(now_ms);
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                settled = self.flight.wait_completed(), if self.flight.has_sent() => {
                    self.process_outcomes(settled).await?;
                }
                removal = self.remover.done(), if self.remover.is_busy() => {
                    self.removed(removal?);
                }
                () = ear.wait_notified() => self.looks.note_notification(),
                () = self.relay.clock.sleep_until(wake_ms) => {}
            }
        }
        self.drain().await
    }

    fn now_ms(&self) -> u64 {
        self.relay.clock.now_ms()
    }

    /// Returns true if more rows may be held.
    fn has_space(&self) -> bool {
        self.flight.waiting.is_empty() && self.flight.len() < self.relay.max_held
    }

    /// Returns true if more rows may be read.
    fn has_room(&self) -> bool {
        self.has_space() && self.parked.len() < self.relay.max_parked
    }

    /// Returns an error if the stream accepts nothing: perhaps only this relay can't reach it.
    fn check_stream(&mut self, now_ms: u64) -> Result<(), RelayError> {
        if !self.flight.has_sent() {
            self.moved_ms = now_ms;
        }
        let stalled_ms = now_ms.saturating_sub(self.moved_ms);
        if stalled_ms < self.relay.stall_ms {
            return Ok(());
        }
        let (stream, seconds) = (self.relay.stream.clone(), stalled_ms / 1_000);
        Err(RelayError::Stalled { stream, seconds, why: self.refusal.why() })
    }

    /// Returns the time of the next timer.
    fn wake_ms(&self, now_ms: u64) -> u64 {
        let mut wake_ms = self.looks.at_ms().min(self.link.ping_at_ms());
        if self.flight.has_sent() {
            wake_ms = wake_ms.min(self.moved_ms + self.relay.stall_ms);
        }
        if !self.remover.is_busy() {
            wake_ms = wake_ms.min(self.leaving.wake_ms(self.remove_at_ms));
        }
        if !self.flight.waiting.is_empty() {
            wake_ms = wake_ms.min(now_ms + ROOM_MS);
        } else if self.hungry && self.has_room() {
            wake_ms = wake_ms.min(self.read_at_ms);
        }
        wake_ms
    }

    /// Reads the next rows. Returns true if some are newly held. Rows of blocked keys stay in the
    /// table.
    async fn read(&mut self, now_ms: u64) -> Result<bool, RelayError> {
        let found = self.reader.next(&mut self.link, self.relay.portion).await?;
        self.hungry = !found.dry;
        if found.dry {
            self.read_at_ms = now_ms + GATHER_MS;
        }
        if found.held.is_some() {
            self.looks.note_held_up(now_ms);
        }
        let before = self.flight.len();
        for row in &found.rows {
            if self.parked.stops(&row.key, row.name.id) {
                self.parked.rewind(&row.key, row.name.id);
            } else {
                self.take(row).await?;
            }
        }
        Ok(self.flight.len() > before)
    }

    /// Reads skipped rows of a resumed key. When none are left, the reader takes over the key
    /// again.
    async fn catch_up(&mut self) -> Result<(), RelayError> {
        let Some(mut going) = self.parked.first_going() else { return Ok(()) };
        let through = going.next.map_or(i64::MAX, |row| row.saturating_sub(1));
        let rows = (going.key.as_str(), going.after, through);
        let found = self.reader.read_passed_over(&mut self.link, self.relay.portion, rows).await?;
        for row in &found.rows {
            self.take(row).await?;
            if self.parked.is_stopped(&going.key) {
                return Ok(());
            }
            going.after = row.name.id;
        }
        if found.dry {
            // The repair of the row may have changed its key.
            let row = self.reader.passed_row(&mut self.link, going.stopped_at).await?;
            if let Some(row) = row.filter(|row| !self.parked.stops(&row.key, row.name.id)) {
                self.take(&row).await?;
            }
        }
        self.parked.advance(going, found.dry);
        Ok(())
    }

    /// Takes one row, unless it is already held.
    async fn take(&mut self, row: &OutboxRow) -> Result<(), RelayError> {
        if !self.flight.hold(row.name) {
            return Ok(());
        }
        let note = InFlightRow::of(row);
        match record(row, self.relay.format) {
            Ok(record) => {
                self.flight.waiting.push_back(WaitingRow { note, record });
                Ok(())
            }
            Err(why) => self.block_key(note, why).await,
        }
    }

    /// Hands rows to the producer until it is full.
    async fn hand_over(&mut self) -> Result<(), RelayError> {
        while let Some(WaitingRow { note, record }) = self.flight.waiting.pop_front() {
            match self.producer.try_put_record(record) {
                Ok(ticket) => self.flight.is_sent(note, ticket),
                Err(TryPutError::Full(record)) => {
                    self.flight.waiting.push_front(WaitingRow { note, record });
                    break;
                }
                Err(TryPutError::Refused(PutError::Closed)) => {
                    return Err(self.emit_failure("the producer is closed".to_owned()));
                }
                Err(TryPutError::Refused(why)) => self.block_key(note, why.to_string()).await?,
            }
        }
        Ok(())
    }

    /// Processes the outcomes of rows.
    async fn process_outcomes(
        &mut self,
        settled: Vec<(InFlightRow, Outcome)>,
    ) -> Result<(), RelayError> {
        self.moved_ms = self.now_ms();
        for (note, outcome) in settled {
            match judge(&outcome) {
                RowVerdict::Sent => {
                    if self.leaving.fresh() == 0 {
                        self.remove_at_ms = self.now_ms() + self.relay.remove_wait_ms;
                    }
                    self.leaving.push(note.name);
                }
                RowVerdict::Park(_) | RowVerdict::Behind if self.parked.is_stopped(&note.key) => {
                    self.flight.release([note.name]);
                }
                RowVerdict::Park(why) => self.block_key(note, why).await?,
                RowVerdict::Behind => {
                    return Err(self.emit_failure("a key is stopped".to_owned()));
                }
                RowVerdict::Retry(why) => return Err(self.emit_failure(why)),
            }
        }
        Ok(())
    }

    /// Blocks a key at a row that can't be sent.
    async fn block_key(&mut self, note: InFlightRow, why: String) -> Result<(), RelayError> {
        self.flight.release([note.name]);
        let row = note.name.id;
        self.flight.drop_waiting_from(&note.key, row);
        self.parked.stop(&note.key, row);
        blocked_keys::block(&mut self.link, &self.relay.table, (note.name, &note.key, &why))
            .await?;
        self.relay.tell(RelayEvent::KeyBlocked {
            table: self.relay.table.label(),
            row,
            key: note.key,
            why,
        });
        Ok(())
    }

    /// Probes the table for settled rows, and periodically for resumed keys, restored rows and the
    /// lag.
    async fn poll(&mut self, now_ms: u64) -> Result<(), RelayError> {
        let glance = lag::probe_lag(&mut self.link, &self.glance, self.reader.cursor()).await?;
        self.looks.note_poll(now_ms);
        if self.reader.has_news(glance.horizon) {
            self.hungry = true;
            self.looks.note_horizon_moved();
        } else if !self.hungry {
            let unread = glance.unread();
            let for_long = self.looks.note_horizon_unchanged(now_ms, unread.is_some());
            if let Some((row, transaction)) = unread.filter(|_| for_long) {
                let table = self.relay.table.label();
                self.relay.tell(RelayEvent::WaitingForTransaction { table, row, transaction });
            }
        }
        if now_ms.saturating_sub(self.reported_ms) < REPORT_MS.min(self.relay.poll_ms) {
            return Ok(());
        }
        self.reported_ms = now_ms;
        if self.parked.len() > 0 {
            self.free().await?;
        }
        self.sweep(now_ms).await?;
        let lag = glance.lag(self.flight.len(), self.flight.oldest_at_us());
        let (table, parked) = (self.relay.table.label(), self.parked.len());
        lag::report(&table, &self.relay.stream, lag, parked);
        self.relay.tell(RelayEvent::Lagging {
            table,
            rows: lag.rows,
            age: lag.age,
            blocked_keys: parked,
        });
        Ok(())
    }

    /// Resumes keys that are no longer blocked. Their skipped rows may lie anywhere behind the
    /// blocking row. If the producer stopped the key, they may also lie before it.
    async fn free(&mut self) -> Result<(), RelayError> {
        let lines = blocked_keys::load(&mut self.link, &self.relay.table).await?;
        for (key, next) in self.parked.newly_freed(&lines) {
            // Rows in flight when the key was blocked must have their outcome first.
            if self.flight.has_sent_of(&key) {
                continue;
            }
            for stopped in self.producer.stopped_keys().await {
                if stopped.key.as_bytes() == key.as_bytes() {
                    self.producer.resume_key(stopped).await;
                }
            }
            self.parked.resume(key.clone(), next);
            self.relay.tell(RelayEvent::KeyResumed { table: self.relay.table.label(), key });
        }
        Ok(())
    }

    /// Searches for rows that appeared behind the cursor, and moves the cursor back to them.
    async fn sweep(&mut self, now_ms: u64) -> Result<(), RelayError> {
        let (flight, parked) = (&self.flight, &self.parked);
        let is_known = |name, key: &str| flight.holds(name) || parked.names(key);
        let times = (now_ms, self.relay.sweep_ms);
        let step = self.sweep.step((&mut self.link, &self.reader), times, is_known);
        if let Some(row) = step.await? {
            self.reader.begin_before(row);
            self.hungry = true;
            self.relay.tell(RelayEvent::RowRestored { table: self.relay.table.label(), row });
        }
        Ok(())
    }

    fn emit_failure(&self, detail: String) -> RelayError {
        RelayError::Stream { stream: self.relay.stream.clone(), detail }
    }
}

/// Converts a row to a producer record. Returns the reason if it can never be sent.
fn record(row: &OutboxRow, format: RowFormat) -> Result<NewRecord, String> {
    let bytes = match format {
        RowFormat::Envelope => row.data_bytes.saturating_add(row.headers_bytes),
        RowFormat::Data => row.data_bytes,
    };
    if bytes > FETCH_MAX_BYTES {
        return Err(format!(
            "it has {bytes} bytes, and no stream accepts more than {FETCH_MAX_BYTES}"
        ));
    }
    let data = match format {
        RowFormat::Envelope => envelope::write(row).into(),
        RowFormat::Data => row.data.clone(),
    };
    let record = NewRecord::new(row.key.as_str(), data);
    match &row.hash {
        None => Ok(record),
        Some(hash) => match hash.parse::<HashKey>() {
            Ok(hash) => Ok(record.with_explicit_hash_key(hash)),
            Err(error) => Err(format!("its explicit hash key can't be used: {error}")),
        },
    }
}
