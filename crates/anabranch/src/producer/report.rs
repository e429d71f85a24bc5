//! Events and counts of a producer. The counts have the KPL's meanings.

use super::completions::TicketSlot;
use super::put::PutSummary;
use crate::event::{Events, ProducerEvent};
use anabranch_model::ids::StreamName;
use anabranch_model::produce::outcome::{CompletedRecords, OutcomeKind, RejectReason};
use anabranch_model::produce::{EntryResult, MachineNotice, PutReply, PutRequest};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts since the start. The KPL's names are in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProducerStats {
    /// Records accepted (`UserRecordsReceived`).
    pub received: u64,
    /// Records accepted and still without an outcome (`UserRecordsPending`).
    pub pending: u64,
    /// Records placed (`UserRecordsPut`).
    pub placed: u64,
    /// Bytes of data placed (`UserRecordsDataPut`).
    pub placed_bytes: u64,
    /// Records rejected.
    pub rejected: u64,
    /// Records with an unknown outcome.
    pub unknown: u64,
    /// Requests sent.
    pub requests: u64,
    /// Kinesis records sent, every attempt counted (`KinesisRecordsPut`).
    pub kinesis_records: u64,
    /// Kinesis records that failed, every attempt counted (`AllErrors`).
    pub errors: u64,
    /// Kinesis records that landed in the wrong shard and had to be sent again.
    pub misrouted: u64,
}

/// The counters behind [`ProducerStats`].
#[derive(Debug, Default)]
pub(super) struct ProducerCounters {
    received: AtomicU64,
    placed: AtomicU64,
    placed_bytes: AtomicU64,
    rejected: AtomicU64,
    unknown: AtomicU64,
    requests: AtomicU64,
    containers: AtomicU64,
    errors: AtomicU64,
    strays: AtomicU64,
}

impl ProducerCounters {
    pub(super) fn stats(&self) -> ProducerStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // Outcomes are read first, because a record counts as received before it has one.
        let (placed, rejected, unknown) =
            (read(&self.placed), read(&self.rejected), read(&self.unknown));
        let received = read(&self.received);
        ProducerStats {
            received,
            pending: received.saturating_sub(placed + rejected + unknown),
            placed,
            placed_bytes: read(&self.placed_bytes),
            rejected,
            unknown,
            requests: read(&self.requests),
            kinesis_records: read(&self.containers),
            errors: read(&self.errors),
            misrouted: read(&self.strays),
        }
    }
}

/// Emits events and keeps the counts.
#[derive(Debug)]
pub(super) struct Reporter {
    /// Named in every event.
    stream: StreamName,
    /// Named in every event.
    producer: ProducerId,
    /// The listener.
    events: Events,
    counts: Arc<ProducerCounters>,
}

fn add(count: &AtomicU64, by: usize) {
    count.fetch_add(by as u64, Ordering::Relaxed);
}

impl Reporter {
    pub(super) fn new(
        stream: StreamName,
        producer: ProducerId,
        events: Events,
        counts: Arc<ProducerCounters>,
    ) -> Self {
        Self { stream, producer, events, counts }
    }

    fn names(&self) -> (StreamName, ProducerId) {
        (self.stream.clone(), self.producer.clone())
    }

    pub(super) fn received(&self, records: usize) {
        if records > 0 {
            add(&self.counts.received, records);
            let pending = self.counts.stats().pending;
            let (stream, producer) = self.names();
            self.events.emit(ProducerEvent::Received { stream, producer, records, pending });
        }
    }

    pub(super) fn sent(&self, request: &PutRequest) {
        add(&self.counts.requests, 1);
        add(&self.counts.containers, request.entries.len());
        self.events.emit(ProducerEvent::RequestSent {
            stream: self.stream.clone(),
            producer: self.producer.clone(),
            kinesis_records: request.entries.len(),
            records: request.records,
            bytes: request.bytes,
        });
    }

    /// Reports a reply, or a failed call, which fails all its Kinesis records.
    pub(super) fn answered(&self, reply: &PutReply, containers: usize, took_ms: u64) {
        let failed = match reply {
            Ok(entries) => {
                entries.iter().filter(|entry| matches!(entry, EntryResult::Failed { .. })).count()
            }
            Err(_) => containers,
        };
        add(&self.counts.errors, failed);
        let (stream, producer) = self.names();
        self.events.emit(ProducerEvent::RequestCompleted {
            stream,
            producer,
            took: Duration::from_millis(took_ms),
            failed,
        });
    }

    pub(super) fn completed(&self, settled: &CompletedRecords<TicketSlot>, now_ms: u64) {
        let records = settled.records.len();
        let bytes = settled.records.data_bytes();
        let first = settled.records.first_put_ms().unwrap_or(now_ms);
        let waited_ms = now_ms.saturating_sub(first);
        let (stream, producer) = self.names();
        match &settled.fate {
            OutcomeKind::Placed(receipt) => {
                add(&self.counts.placed, records);
                add(&self.counts.placed_bytes, bytes);
                let shard = receipt.shard.clone();
                let retries = receipt.tries.saturating_sub(1) as usize;
                let sent_ms = receipt.attempts.first().map_or(first, |attempt| attempt.sent_ms);
                let buffered_ms = sent_ms.saturating_sub(first);
                let pending = self.counts.stats().pending;
                self.events.emit(ProducerEvent::Placed {
                    stream,
                    producer,
                    shard,
                    records,
                    bytes,
                    retries,
                    buffered_for: Duration::from_millis(buffered_ms),
                    waited_for: Duration::from_millis(waited_ms),
                    pending,
                });
            }
            OutcomeKind::Rejected(why) => self.rejected(records, why.clone()),
            OutcomeKind::Unknown => self.unknown(records),
        }
    }

    fn unknown(&self, records: usize) {
        add(&self.counts.unknown, records);
        let pending = self.counts.stats().pending;
        let (stream, producer) = self.names();
        self.events.emit(ProducerEvent::Unknown { stream, producer, records, pending });
    }

    /// Reports every record that is left as unknown.
    pub(super) fn given_up(&self) {
        let left = usize::try_from(self.counts.stats().pending).unwrap_or(usize::MAX);
        if left > 0 {
            self.unknown(left);
        }
    }

    fn rejected(&self, records: usize, why: RejectReason) {
        add(&self.counts.rejected, records);
        let pending = self.counts.stats().pending;
        let (stream, producer) = self.names();
        self.events.emit(ProducerEvent::Rejected { stream, producer, records, why, pending });
    }

    /// Reports records that were accepted but never taken by the driver.
    pub(super) fn never_taken(&self, records: usize) {
        if records > 0 {
            self.received(records);
            self.rejected(records, RejectReason::Closed);
        }
    }

    pub(super) fn notice(&self, notice: MachineNotice, now_ms: u64) {
        let (stream, producer) = self.names();
        self.events.emit(match notice {
            MachineNotice::MapRead { shards } => ProducerEvent::ShardMapRead { stream, producer, shards },
            MachineNotice::MapFailed { fault } => ProducerEvent::ShardMapFailed { stream, producer, fault },
            MachineNotice::MapDropped => ProducerEvent::ShardMapDropped { stream, producer },
            MachineNotice::Misrouted { shard, records } => {
                add(&self.counts.strays, 1);
                ProducerEvent::Misrouted { stream, producer, shard, records }
            }
            MachineNotice::Retry { shard, fault, detail, records, at_ms } => {
                let retry_in = Duration::from_millis(at_ms.saturating_sub(now_ms));
                ProducerEvent::Retried { stream, producer, shard, fault, detail, records, retry_in }
            }
            MachineNotice::RateReduced { shard, share } => {
                ProducerEvent::RateReduced { stream, producer, shard, share }
            }
            MachineNotice::Paused { shards, fault, detail, for_ms, pauses: paused } => {
                tracing::warn!(
                    stream = %stream, producer = %producer, ?fault, detail = %detail, paused, for_ms,
                    "the service refuses this producer, so its records wait"
                );
                let duration = Duration::from_millis(for_ms);
                ProducerEvent::Paused { stream, producer, shards, fault, detail, duration, paused }
            }
            MachineNotice::Resumed { shards, for_ms, pauses: paused } => {
                tracing::info!(
                    stream = %stream, producer = %producer, paused, for_ms,
                    "the service takes records of this producer again"
                );
                let duration = Duration::from_millis(for_ms);
                ProducerEvent::Resumed { stream, producer, shards, duration, paused }
            }
            MachineNotice::KeyStopped { key } => ProducerEvent::KeyStopped { stream, producer, key },
            MachineNotice::ProducerStopped => ProducerEvent::ProducerStopped { stream, producer },
        });
    }

    pub(super) fn summary(&self) -> PutSummary {
        let stats = self.counts.stats();
        PutSummary { placed: stats.placed, rejected: stats.rejected, unknown: stats.unknown }
    }

    /// Reports records that were outstanding when the producer was dropped.
    pub(super) fn abandoned(&self, records: usize) {
        if records > 0 {
            tracing::warn!(
                stream = %self.stream,
                producer = %self.producer,
                records,
                "a producer was dropped with records on their way: close it, or flush it"
            );
            let records = records as u64;
            let (stream, producer) = self.names();
            self.events.emit(ProducerEvent::Abandoned { stream, producer, records });
        }
    }
}

// The id of a producer, which distinguishes the producers of one stream in events and metrics.

/// Maximum number of characters of an id.
pub(super) const ID_MAX_CHARS: usize = 128;

/// Id of a producer in events and metrics: 1 to 128 characters. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(Arc<str>);

impl ProducerId {
    /// Returns the id for a producer without a configured one, from a random number.
    pub(super) fn drawn(number: u64) -> Self {
        format!("{number:016x}").into()
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ProducerId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for ProducerId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use anabranch_model::retry::Fault;
    use std::sync::Mutex;

    #[test]
    fn a_retry_is_reported_with_the_pause_from_now() {
        let pauses = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&pauses);
        let events = Events::new(move |event| {
            if let Event::Producer(ProducerEvent::Retried { retry_in, .. }) = event {
                listener.lock().unwrap().push(*retry_in);
            }
        });
        let (stream, producer) = (StreamName::from("orders"), ProducerId::from("p"));
        let reporter = Reporter::new(stream, producer, events, Arc::default());
        for (at_ms, now_ms) in [(1_500, 1_200), (1_500, 1_500), (1_500, 1_700)] {
            let notice = MachineNotice::Retry {
                shard: None,
                fault: Fault::Throttled,
                detail: Arc::from("slow down"),
                records: 1,
                at_ms,
            };
            reporter.notice(notice, now_ms);
        }
        let expected = [300, 0, 0].map(Duration::from_millis);
        assert_eq!(*pauses.lock().unwrap(), expected);
    }
}
