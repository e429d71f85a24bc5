//! Sealing: building the bytes of Kinesis records once, and tracking them with their user records.

use super::carried_records::CarriedRecords;
use super::outcome::{self, Attempt};
use super::paged_queue::{QueuedRecord, SparePages};
use super::pending::PendingRecord;
use super::settings::Aggregation;
use super::shard_queue::{QueueScope, ShardQueue};
use crate::aggregate::dedup_tag::{DedupTag, MARK_MAX_BYTES};
use crate::aggregate::encode::{
    AggregateBuilder, KinesisRecord, PushResult, RawAggregateRecord, UnsealedRecord, seal_many,
};
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::sequence::SequenceNumber;

/// A Kinesis record whose bytes never change again: an aggregate or a single user record.
#[derive(Debug)]
pub(super) struct SealedRecord<T> {
    /// User records, in the order in which they are in the Kinesis record.
    pub(super) records: CarriedRecords<T>,
    /// Bytes to send.
    pub(super) sealed: KinesisRecord,
    /// Range from the lowest to the highest hash of its user records.
    pub(super) hash_span: HashRange,
    /// Shard that the map predicted for all of its user records.
    pub(super) predicted: Option<ShardId>,
    /// Era of the router's map that made the prediction.
    pub(super) era: u64,
    /// Attempts, only the first and the last ones if there were many.
    pub(super) attempts: Vec<Attempt>,
    /// Number of attempts.
    pub(super) tries: u32,
    /// True if one of its attempts may have taken effect.
    pub(super) maybe_landed: bool,
    /// True if it is sent in a request of its own, because a request with others was refused as a
    /// whole.
    pub(super) isolated: bool,
    /// True if it is sent without `SequenceNumberForOrdering`, because the service refused it with
    /// one.
    pub(super) unnumbered: bool,
}

impl<T> SealedRecord<T> {
    /// Records a finished attempt.
    pub(super) fn note(&mut self, attempt: Attempt) {
        self.tries = self.tries.saturating_add(1);
        outcome::note(&mut self.attempts, attempt);
    }

    /// Returns true if all user records have one hash, so that any shard that takes one takes all.
    pub(super) fn has_one_hash(&self) -> bool {
        self.hash_span.start() == self.hash_span.end()
    }

    /// Returns true if `range` holds every user record.
    pub(super) fn fits_range(&self, range: HashRange) -> bool {
        range.contains(self.hash_span.start()) && range.contains(self.hash_span.end())
    }
}

/// A sealed record that was sent, and its queue.
#[derive(Debug)]
pub(super) struct InFlightRecord<T> {
    pub(super) record: SealedRecord<T>,
    /// Slot of its queue. `None` if that queue is gone: the record then blocks the queues over its
    /// hashes.
    pub(super) lane: Option<usize>,
    pub(super) stage: InFlightState,
}

/// State of a Kinesis record that was sent.
#[derive(Debug, Clone)]
pub(super) enum InFlightState {
    /// In a request without a reply.
    Sent,
    /// In a shard, but it is not known yet if all of its user records belong there.
    Unverified {
        /// Shard that answered.
        shard: ShardId,
        /// Sequence number in that shard.
        sequence: SequenceNumber,
        /// Only a list read with a higher number than this can verify it.
        after_read: u64,
    },
}

/// A Kinesis record without its digest, and its user records.
pub(super) struct DraftRecord<T> {
    records: CarriedRecords<T>,
    /// Unsealed aggregate, or `None` for a single user record.
    closed: Option<UnsealedRecord>,
}

/// Tools to build a Kinesis record; their memory is reused.
pub(super) struct Sealer<'a, T> {
    pub(super) builder: &'a mut AggregateBuilder,
    pub(super) spare: &'a mut Vec<Vec<QueuedRecord<T>>>,
    pub(super) pages: &'a mut SparePages,
    /// Tag added to an aggregate.
    pub(super) dedup_tag: Option<DedupTag>,
}

/// Takes the oldest records of a queue for one Kinesis record of at most `max_bytes`. If the
/// queue's shard is not known, takes records of one hash only. A single record is not copied.
pub(super) fn draft<T>(
    lane: &mut ShardQueue<T>,
    tools: Sealer<'_, T>,
    aggregation: Aggregation,
    max_bytes: usize,
) -> Option<DraftRecord<T>> {
    let Sealer { builder, spare, pages, dedup_tag: mark } = tools;
    let max_bytes = max_bytes.saturating_sub(mark.map_or(0, |_| MARK_MAX_BYTES));
    let count = count_joined(lane, builder, aggregation, max_bytes)?;
    let records = lane.take_first(count, || spare.pop().unwrap_or_default(), pages);
    let closed = match mark {
        _ if count < 2 => None,
        None => builder.close(),
        Some(mark) => builder.close_tagged(mark),
    };
    Some(DraftRecord { records, closed })
}

/// Returns the number of the oldest records that go into one Kinesis record, or `None` if the queue
/// is empty. If more than one, they have been added to the builder.
fn count_joined<T>(
    lane: &ShardQueue<T>,
    builder: &mut AggregateBuilder,
    aggregation: Aggregation,
    max_bytes: usize,
) -> Option<usize> {
    let Some(first) = lane.queue.front() else {
        let first = lane.written.first()?;
        // Paged records are only in queues of shards, so all of them may be aggregated.
        let several = lane.written.len() > 1 && first.framed_bytes() <= max_bytes;
        return Some(if several { fill(builder, lane.written.entries(), max_bytes) } else { 1 });
    };
    let one_hash = match (&lane.place, aggregation) {
        (_, Aggregation::Off) => return Some(1),
        _ if first.alone => return Some(1),
        (QueueScope::Shard(..), Aggregation::ByShard) => None,
        _ => Some(first.put.hash),
    };
    let joins =
        |next: &PendingRecord<T>| !next.alone && one_hash.is_none_or(|hash| next.put.hash == hash);
    // Paged records follow the requeued ones.
    let newer = if one_hash.is_none() && lane.queue.iter().all(joins) { usize::MAX } else { 0 };
    let second = match lane.queue.get(1) {
        Some(next) => joins(next),
        None => newer > 0 && !lane.written.is_empty(),
    };
    if !second || first.framed_bytes() > max_bytes {
        return Some(1);
    }
    let put_back = lane.queue.iter().take_while(|next| joins(next)).map(PendingRecord::entry);
    Some(fill(builder, put_back.chain(lane.written.entries().take(newer)), max_bytes))
}

/// Builds an aggregate of the first entries that fit, and returns their number, at least 1.
fn fill<'a>(
    builder: &mut AggregateBuilder,
    mut entries: impl Iterator<Item = RawAggregateRecord<'a>>,
    max_bytes: usize,
) -> usize {
    builder.clear();
    let mut count = 0;
    while entries
        .next()
        .is_some_and(|next| builder.add_raw_within(&next, max_bytes) == PushResult::Added)
    {
        count += 1;
    }
    // A record that fits into no aggregate is sent alone.
    count.max(1)
}

/// Seals several Kinesis records together, because computing their digests side by side is cheaper.
pub(super) fn seal<T>(
    cuts: Vec<(DraftRecord<T>, Option<ShardId>)>,
    era: u64,
) -> Vec<SealedRecord<T>> {
    let mut parts = Vec::with_capacity(cuts.len());
    let mut closed = Vec::new();
    for (cut, predicted) in cuts {
        let framed = cut.closed.is_some();
        closed.extend(cut.closed);
        parts.push((cut.records, predicted, framed));
    }
    let mut sealed = seal_many(closed).into_iter();
    let freeze = |(records, predicted, framed): (CarriedRecords<T>, _, bool)| {
        let aggregate = if framed { sealed.next() } else { None };
        SealedRecord {
            sealed: aggregate.unwrap_or_else(|| single_record(&records)),
            hash_span: records.hash_span(),
            isolated: records.is_alone(),
            records,
            predicted,
            era,
            attempts: Vec::new(),
            tries: 0,
            maybe_landed: false,
            unnumbered: false,
        }
    };
    parts.into_iter().map(freeze).collect()
}

/// Returns a single user record as a Kinesis record, under its own key.
fn single_record<T>(records: &CarriedRecords<T>) -> KinesisRecord {
    let CarriedRecords::Unpacked(records) = records else {
        unreachable!("a record that is not in an aggregate has its own key and data")
    };
    let put = &records[0].put;
    KinesisRecord {
        partition_key: put.key.clone(),
        explicit_hash_key: put.explicit(),
        data: put.data.clone(),
        records: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;
    use crate::produce::{OfferedRecord, RecordContent};

    /// Offers a record whose key and data are its number.
    fn offer(number: u64, take: impl FnOnce(&OfferedRecord<'_>)) {
        let text = number.to_string();
        let both = text.repeat(2);
        let content = RecordContent::Borrowed { both: both.as_bytes(), key_len: text.len() };
        take(&OfferedRecord { content, hash: HashKey(1), is_explicit: false });
    }

    #[test]
    fn a_container_ends_before_a_record_that_goes_alone() {
        let (pages, spare) = (&mut SparePages::new(), &mut Vec::new());
        let mut lane: ShardQueue<u64> =
            ShardQueue::new(QueueScope::Shard(ShardId::from_index(0), HashRange::ALL), 0);
        for number in [4, 5, 6] {
            offer(number, |offer| lane.push(offer, number, 0, number, pages));
        }
        let mut older = Vec::new();
        for number in [0, 1, 2, 3] {
            offer(number, |offer| older.push(offer.pending(number, 0, number)));
        }
        older[2].alone = true;
        lane.merge(older, pages);
        let mut builder = AggregateBuilder::new();
        let mut cuts = Vec::new();
        loop {
            let tools = Sealer { builder: &mut builder, spare, pages, dedup_tag: None };
            let Some(cut) = draft(&mut lane, tools, Aggregation::ByShard, 1_000) else { break };
            let numbers: Vec<u64> =
                (0..cut.records.len()).map(|at| cut.records.number(at)).collect();
            let sealed = seal(vec![(cut, None)], 0).remove(0);
            assert_eq!(sealed.sealed.records, numbers.len());
            for (record, number) in sealed.records.unpack(&sealed.sealed).iter().zip(&numbers) {
                assert_eq!(
                    (record.number, record.put.key.as_str()),
                    (*number, &*number.to_string())
                );
            }
            cuts.push(numbers);
        }
        assert_eq!(cuts, [vec![0, 1], vec![2], vec![3, 4, 5, 6]]);
        assert!(lane.is_empty() && lane.queue_bytes == 0);
    }
}
