//! The rows that a relay holds: read, handed to the producer, and in the stream but not yet removed.

use crate::read::{OutboxRow, RowId};
use anabranch::producer::{NewRecord, Outcome, Ticket};
use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A row that was read and is not yet with the producer.
#[derive(Debug)]
pub(crate) struct WaitingRow {
    /// Which one.
    pub(crate) note: InFlightRow,
    /// What goes to the producer.
    pub(crate) record: NewRecord,
}

/// What is kept of a row while the producer has the rest.
#[derive(Debug, Clone)]
pub(crate) struct InFlightRow {
    /// Which one.
    pub(crate) name: RowId,
    /// Its partition key.
    pub(crate) key: String,
    /// When it was written.
    pub(crate) created_us: Option<i64>,
}

impl InFlightRow {
    pub(crate) fn of(row: &OutboxRow) -> Self {
        Self { name: row.name, key: row.key.clone(), created_us: row.created_us }
    }
}

/// The rows that a relay holds. A row that is held is not taken again, however often it is read.
#[derive(Debug, Default)]
pub(crate) struct InFlightRows {
    /// Read, not yet with the producer, by id.
    pub(crate) waiting: VecDeque<WaitingRow>,
    /// With the producer, in the order in which it got them.
    sent: Vec<(InFlightRow, Ticket)>,
    /// All of these, and those that are in the stream and not yet removed from the table.
    held: HashSet<RowId>,
}

impl InFlightRows {
    /// How many rows are held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// How many rows the producer has.
    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Whether the producer has rows.
    pub(crate) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether a row of this key is with the producer.
    pub(crate) fn has_sent_of(&self, key: &str) -> bool {
        self.sent.iter().any(|(note, _)| note.key == key)
    }

    /// Whether a row is held.
    pub(crate) fn holds(&self, name: RowId) -> bool {
        self.held.contains(&name)
    }

    /// Holds a row. `false` if it is held already.
    pub(crate) fn hold(&mut self, name: RowId) -> bool {
        self.held.insert(name)
    }

    /// Lets rows go: they were removed, or stay in the table for later.
    pub(crate) fn release(&mut self, names: impl IntoIterator<Item = RowId>) {
        for name in names {
            self.held.remove(&name);
        }
    }

    /// Lets the rows of a key from this one on go that are not yet with the producer.
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

    /// A row is with the producer.
    pub(crate) fn is_sent(&mut self, note: InFlightRow, ticket: Ticket) {
        self.sent.push((note, ticket));
    }

    /// When the oldest row that is held was written.
    pub(crate) fn oldest_at_us(&self) -> Option<i64> {
        let sent = self.sent.iter().filter_map(|(note, _)| note.created_us).min();
        sent.or_else(|| self.waiting.front().and_then(|row| row.note.created_us))
    }

    /// Waits until some rows have their outcome, and gives them in the order of sending.
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

    /// The rows that have their outcome now.
    pub(crate) fn take_completed(&mut self) -> Vec<(InFlightRow, Outcome)> {
        self.take(|ticket| ticket.try_outcome())
    }

    /// Takes the rows that have their outcome, in the order of sending.
    fn take(
        &mut self,
        mut outcome: impl FnMut(&mut Ticket) -> Option<Outcome>,
    ) -> Vec<(InFlightRow, Outcome)> {
        // The newest first: of rows put one by one, an outcome is told after those that its key had
        // before, so none of these is missed while outcomes come in.
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
        let producer = Producer::new("orders").start(LocalKinesis::new(engine)).await.unwrap();
        let mut flight = InFlightRows::default();
        for id in 0..10 {
            let note = InFlightRow {
                name: RowId { id, transaction: None },
                key: "k".to_owned(),
                created_us: None,
            };
            flight.is_sent(note, producer.put("k", "data").await.unwrap());
        }
        // The outcomes of all rows are told after three of them were looked at.
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
