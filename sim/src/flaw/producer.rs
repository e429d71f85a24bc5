//! Deliberate flaws around producers, and the stream as a flawed producer reaches it.

use anabranch::stream::api::{
    FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom, ShardFilter,
    ShardIterator, ShardList, StreamApi, StreamError, StreamSummary, Subscription,
};
use anabranch_model::hash::HashKey;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An intermittent flaw affects one in this many requests.
const NOW_AND_THEN: u64 = 5;

/// One rule of the producer that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProducerFlaw {
    /// No flaw.
    #[default]
    None,
    /// Kinesis records of one shard are sent concurrently.
    NoOrder,
    /// Keys continue behind a failed record.
    GoOn,
    /// A request is answered first and sent after the next one.
    SendsLate,
    /// A refused record is reported as placed.
    PlacedForRefused,
    /// The last entry of a request is reported as placed and never sent.
    LosesAnEntry,
    /// A refused record is sent once more, after its outcome.
    SendsWhatItGaveUp,
    /// A request whose reply was lost counts as never sent.
    LostReplyIsARefusal,
    /// A Kinesis record goes to another shard than its keys belong to.
    Misroutes,
    /// An outcome is published twice.
    CompletesTwice,
}

impl ProducerFlaw {
    /// All flaws.
    pub const ALL: [Self; 9] = [
        Self::NoOrder,
        Self::GoOn,
        Self::SendsLate,
        Self::PlacedForRefused,
        Self::LosesAnEntry,
        Self::SendsWhatItGaveUp,
        Self::LostReplyIsARefusal,
        Self::Misroutes,
        Self::CompletesTwice,
    ];

    /// Returns the flaw with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wrong| wrong.to_string() == name)
    }

    /// Returns true if the flaw shows only where records are given up.
    pub fn needs_deadline(self) -> bool {
        matches!(self, Self::GoOn | Self::SendsWhatItGaveUp | Self::LostReplyIsARefusal)
    }
}

impl fmt::Display for ProducerFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "nothing",
            Self::NoOrder => "no-order",
            Self::GoOn => "go-on",
            Self::SendsLate => "sends-late",
            Self::PlacedForRefused => "placed-for-refused",
            Self::LosesAnEntry => "loses-an-entry",
            Self::SendsWhatItGaveUp => "sends-what-it-gave-up",
            Self::LostReplyIsARefusal => "lost-reply-is-a-refusal",
            Self::Misroutes => "routes-astray",
            Self::CompletesTwice => "tells-twice",
        })
    }
}

/// A stream that carries out its producer's requests incorrectly.
#[derive(Debug)]
pub struct FlawedProducerStream<A> {
    inner: A,
    /// The broken rule.
    wrong: ProducerFlaw,
    /// State that the flaw needs across requests.
    memory: Mutex<FlawMemory>,
}

#[derive(Debug, Default)]
struct FlawMemory {
    /// Number of requests so far.
    requests: u64,
    /// Placement of an earlier record.
    placed: Option<Placement>,
    /// Entries to be sent later.
    later: Vec<PutEntry>,
}

impl<A: StreamApi> FlawedProducerStream<A> {
    /// Wraps a stream with one flaw or none.
    pub fn new(inner: A, wrong: ProducerFlaw) -> Self {
        Self { inner, wrong, memory: Mutex::default() }
    }

    async fn put(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        let (shows, placed) = {
            let mut memory = self.memory();
            memory.requests += 1;
            (memory.requests.is_multiple_of(NOW_AND_THEN), memory.placed.clone())
        };
        let answer = placed.map(PutEntryResult::Placed);
        match (self.wrong, answer) {
            (ProducerFlaw::SendsLate, Some(answer)) if shows => {
                self.memory().later.extend_from_slice(entries);
                return Ok(vec![answer; entries.len()]);
            }
            (ProducerFlaw::LosesAnEntry, Some(answer)) if shows => {
                let Some((_, sent)) = entries.split_last() else { return Ok(Vec::new()) };
                let mut results = match sent {
                    [] => Vec::new(),
                    sent => self.inner.put_records(stream, sent).await?,
                };
                results.push(answer);
                return Ok(results);
            }
            (ProducerFlaw::Misroutes, _) if shows => {
                let astray = |entry: &PutEntry| {
                    let HashKey(place) = HashKey::effective(entry.key.as_str(), entry.hash);
                    PutEntry { hash: Some(HashKey(!place)), ..entry.clone() }
                };
                let entries: Vec<PutEntry> = entries.iter().map(astray).collect();
                return self.inner.put_records(stream, &entries).await;
            }
            _ => {}
        }
        let mut results = self.inner.put_records(stream, entries).await?;
        let later = std::mem::take(&mut self.memory().later);
        if !later.is_empty() {
            let _ = self.inner.put_records(stream, &later).await;
        }
        let mut memory = self.memory();
        for (entry, result) in entries.iter().zip(&mut results) {
            match (result, self.wrong) {
                (PutEntryResult::Placed(placement), _) => memory.placed = Some(placement.clone()),
                (PutEntryResult::Failed { .. }, ProducerFlaw::SendsWhatItGaveUp) => {
                    memory.later.push(entry.clone());
                }
                (result @ PutEntryResult::Failed { .. }, ProducerFlaw::PlacedForRefused) => {
                    if let Some(placed) = memory.placed.clone() {
                        *result = PutEntryResult::Placed(placed);
                    }
                }
                _ => {}
            }
        }
        Ok(results)
    }

    fn memory(&self) -> MutexGuard<'_, FlawMemory> {
        // Each change is one assignment, so a panic leaves no partial change.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: StreamApi> StreamApi for FlawedProducerStream<A> {
    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        self.inner.describe(stream).await
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        self.inner.list_shards(stream, filter).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        self.inner.iterator(stream, shard, at).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        self.inner.records(stream, iterator, limit).await
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.inner.register_consumer(stream, name).await
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.inner.describe_consumer(stream, name).await
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        self.inner.deregister_consumer(consumer).await
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        self.inner.subscribe(consumer, shard, at).await
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        self.put(stream, entries).await.map_err(|error| match (self.wrong, error.fault) {
            (ProducerFlaw::LostReplyIsARefusal, Fault::ReplyLost) => {
                StreamError { fault: Fault::NotSent, ..error }
            }
            _ => error,
        })
    }

    async fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> Result<Placement, StreamError> {
        self.inner.put_record(stream, entry, after).await
    }
}
