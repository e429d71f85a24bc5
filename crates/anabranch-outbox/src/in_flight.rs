//! Rows held by a relay: read, with the producer, or in the stream but not yet removed.

use crate::read::{OutboxRow, RowId};
use anabranch::producer::{NewRecord, Outcome, Ticket};
use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A row that was read but not yet handed to the producer.
#[derive(Debug)]
pub(crate) struct WaitingRow {
    pub(crate) note: InFlightRow,
    /// The record for the producer.
    pub(crate) record: NewRecord,
}

/// Metadata kept for a row while the producer holds its data.
#[derive(Debug, Clone)]
pub(crate) struct InFlightRow {
    pub(crate) name: RowId,
    pub(crate) key: String,
    /// Creation time in microseconds since 1970.
    pub(crate) created_us: Option<i64>,
}

impl InFlightRow {
    pub(crate) fn of(row: &OutboxRow) -> Self {
        Self { name: row.name, key: row.key.clone(), created_us: row.created_us }
    }
}

/// The rows held by a relay. A held row is not taken again when it is read again.
#[derive(Debug, Default)]
pub(crate) struct InFlightRows {
    /// Rows read but not yet with the producer, in order of id.
    pub(crate) waiting: VecDeque<WaitingRow>,
    /// Rows with the producer, in the order of sending.
    sent: Vec<(InFlightRow, Ticket)>,
    /// All of these, plus the rows in the stream that are not yet removed from the table.
    held: HashSet<RowId>,
}

impl InFlightRows {
    /// Returns the number of rows held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the number of rows with the producer.
    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Returns true if the producer has rows.
    pub(crate) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Returns true if the producer has a row of this key.
    pub(crate) fn has_sent_of(&self, key: &str) -> bool {
        self.sent.iter().any(|(note, _)| note.key == key)
    }

    /// Returns true if the row is held.
    pub(crate) fn holds(&self, name: RowId) -> bool {
        self.held.contains(&name)
    }

    /// Marks a row as held. Returns `false` if it already was.
    pub(crate) fn hold(&mut self, name: RowId) -> bool {
        self.held.insert(name)
    }

    /// Releases rows that were removed, or that stay in the table for later.
    pub(crate) fn release(&mut self, names: impl IntoIterator<Item = RowId>) {
        for name in names {
            self.held.remove(&name);
        }
    }

    /// Releases the key's rows from `row` on that are not yet with the producer.
    pub(crate) fn drop_waiting_from(&mut self, key: &str, row: i64) {
        let (held, all) = (&mut self.held, &mut self.waiting);
        all.retain(|waiting| {
            let stays = waiting.note.key != key || waiting.note.name.id < row;
            if !stays {
                held.remove(&waiting.note.name);
            }
            stays
        });
    }

    /// Records that a row is with the producer.
    pub(crate) fn is_sent(&mut self, note: InFlightRow, ticket: Ticket) {
        self.sent.push((note, ticket));
    }

    /// Returns the creation time of the oldest held row that is not yet in the stream.
    pub(crate) fn oldest_at_us(&self) -> Option<i64> {
        let sent = self.sent.iter().filter_map(|(note, _)| note.created_us).min();
        sent.or_else(|| self.waiting.front().and_then(|row| row.note.created_us))
    }

    /// Waits until some rows have an outcome, and returns them in the order of sending.
    pub(crate) async fn wait_completed(&mut self) -> Vec<(InFlightRow, Outcome)> {
        poll_fn(|context| {
            let settled = self.take(|ticket| match Pin::new(ticket).poll(context) {
                Poll::Ready(outcome) => Some(outcome),
                Poll::Pending => None,
            });
            if settled.is_empty() { Poll::Pending } else { Poll::Ready(settled) }
        })
        .await
    }

    /// Returns the rows that have an outcome now.
    pub(crate) fn take_completed(&mut self) -> Vec<(InFlightRow, Outcome)> {
        self.take(|ticket| ticket.try_outcome())
    }

    /// Removes the rows that have an outcome and returns them in the order of sending.
    fn take(
        &mut self,
        mut outcome: impl FnMut(&mut Ticket) -> Option<Outcome>,
    ) -> Vec<(InFlightRow, Outcome)> {
        // Check the newest first. For rows put one by one, an outcome is published after those of
        // earlier rows of the same key. Checking in reverse misses none of these while outcomes
        // arrive.
        let sent = self.sent.iter_mut().enumerate().rev();
        let found = sent.filter_map(|(at, (_, ticket))| Some((at, outcome(ticket)?)));
        let mut found: Vec<(usize, Outcome)> = found.collect();
        if found.is_empty() {
            return Vec::new();
        }
        let mut settled = Vec::with_capacity(found.len());
        let mut next = 0;
        self.sent.retain(|(note, _)| {
            let at = next;
            next += 1;
            let Some((_, outcome)) = found.pop_if(|(place, _)| *place == at) else { return true };
            settled.push((note.clone(), outcome));
            false
        });
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch::producer::{Attempts, Producer};
    use anabranch::stream::LocalKinesis;
    use anabranch_local::{Clock, Engine, EngineOptions, op::create_stream};
    use std::sync::Arc;

    #[tokio::test]
    async fn no_row_is_settled_before_one_that_was_sent_earlier_while_outcomes_come_in() {
        let engine = Arc::new(Engine::new(EngineOptions::instant(), Clock::system()));
        let request = create_stream::Request {
            stream_name: Some("orders".to_owned()),
            shard_count: Some(1),
            ..create_stream::Request::default()
        };
        engine.create_stream(&request).unwrap();
        let producer =
            Producer::new("orders").with_kinesis(LocalKinesis::new(engine)).start().await.unwrap();
        let mut flight = InFlightRows::default();
        for id in 0..10 {
            let note = InFlightRow {
                name: RowId { id, transaction: None },
                key: "k".to_owned(),
                created_us: None,
            };
            flight.is_sent(note, producer.put("k", "data").await.unwrap());
        }
        // All outcomes are published after three tickets were checked.
        let mut looks = 0;
        let settled = flight.take(|_| {
            looks += 1;
            (looks > 3).then(|| Outcome::Unknown { attempts: Attempts::default() })
        });
        let ids: Vec<i64> = settled.iter().map(|(note, _)| note.name.id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(flight.sent(), 3);
        let rest = flight.wait_completed().await;
        assert_eq!(rest.first().map(|(note, _)| note.name.id), Some(7));
    }
}
