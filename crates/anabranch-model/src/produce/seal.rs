//! A container on its way: bytes that are built once, and the records that are in them.

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

/// A container whose bytes never change again.
#[derive(Debug)]
pub(super) struct SealedRecord<T> {
    /// The records, in the order in which they stand in the container.
    pub(super) records: CarriedRecords<T>,
    /// What is sent.
    pub(super) sealed: KinesisRecord,
    /// From the lowest to the highest hash of its records.
    pub(super) hash_span: HashRange,
    /// The shard that the map predicted for all of its records.
    pub(super) predicted: Option<ShardId>,
    /// Which life of the map the prediction is from.
    pub(super) era: u64,
    /// What was tried, the first and the last attempts if there were very many.
    pub(super) attempts: Vec<Attempt>,
    /// How often it was sent.
    pub(super) tries: u32,
    /// Whether one of its attempts may have taken effect.
    pub(super) maybe_landed: bool,
    /// Whether it goes in a request of its own, because a request with others was refused whole.
    pub(super) isolated: bool,
    /// Whether it goes without the number of the one before it, which the service refused.
    pub(super) unnumbered: bool,
}

impl<T> SealedRecord<T> {
    /// Notes how an attempt ended.
    pub(super) fn note(&mut self, attempt: Attempt) {
        self.tries = self.tries.saturating_add(1);
        outcome::note(&mut self.attempts, attempt);
    }

    /// Whether all records have one hash: then whichever shard takes it takes all of them.
    pub(super) fn has_one_hash(&self) -> bool {
        self.hash_span.start() == self.hash_span.end()
    }

    /// Whether the shard of this range takes every record.
    pub(super) fn fits_range(&self, range: HashRange) -> bool {
        range.contains(self.hash_span.start()) && range.contains(self.hash_span.end())
    }
}

/// Where a container that left is, and whose it is.
#[derive(Debug)]
pub(super) struct InFlightRecord<T> {
    /// The container.
    pub(super) record: SealedRecord<T>,
    /// The lane that it left from. `None` if that lane is no more: then it blocks the lanes over
    /// its hashes.
    pub(super) lane: Option<usize>,
    /// Where it is.
    pub(super) stage: InFlightState,
}

/// Where a container that left is.
#[derive(Debug, Clone)]
pub(super) enum InFlightState {
    /// In a request.
    Sent,
    /// In a shard, and nobody knows yet whether all of its records belong there.
    Unverified {
        /// The shard that answered.
        shard: ShardId,
        /// Its number there.
        sequence: SequenceNumber,
        /// Only a list read that began after this many others tells.
        after_read: u64,
    },
}

/// A container without its digest, and the records that are in it.
pub(super) struct DraftRecord<T> {
    /// The records in it.
    records: CarriedRecords<T>,
    /// What becomes the bytes: an aggregate, or nothing for a record alone.
    closed: Option<UnsealedRecord>,
}

/// What makes a container, with memory that is used again.
pub(super) struct Sealer<'a, T> {
    pub(super) builder: &'a mut AggregateBuilder,
    pub(super) spare: &'a mut Vec<Vec<QueuedRecord<T>>>,
    pub(super) pages: &'a mut SparePages,
    /// What an aggregate is marked with.
    pub(super) dedup_tag: Option<DedupTag>,
}

/// Takes the oldest records of a lane for one container: at most `max_bytes`, and of one hash where
/// the lane's shard is not known. A record that is alone is not copied.
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

/// How many of the oldest records go together; these are in the builder then, if they are more than
/// one. `None` if there is no record.
fn count_joined<T>(
    lane: &ShardQueue<T>,
    builder: &mut AggregateBuilder,
    aggregation: Aggregation,
    max_bytes: usize,
) -> Option<usize> {
    let Some(first) = lane.queue.front() else {
        let first = lane.written.first()?;
        // What is written down is of a shard's lane, so all of it goes together.
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
    // Behind those that were put back stand those that are written down.
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

/// Builds an aggregate of as many of these as it takes, and says how many these are.
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
    // Even a record that no container takes goes somewhere: alone.
    count.max(1)
}

/// Seals containers together, since several digests side by side cost less.
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

/// A record that goes as it is, under its own key.
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

    /// Puts a record: its number is its key and its data.
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
