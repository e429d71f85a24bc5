//! Deaggregates records and sends them to their lanes.

use super::dedup::{DuplicateKey, RecentDedupTags};
use super::lane::{Chunk, LaneSender};
use super::memory::{ReplyReservation, ShardBudget};
use super::resume::Resume;
use crate::clock::Clock;
use crate::consumer::health::telemetry::{FetchStep, ShardTelemetry};
use crate::consumer::progress::Progress;
use crate::event::{Events, ShardEvent};
use anabranch_model::aggregate::decode::{
    AggregateFrame, DecodedAggregate, UserRecords, decode_framed, frames,
};
use anabranch_model::hash::HashRange;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use anabranch_model::record::{Record, UserRecord};
use std::iter::Once;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Deaggregates records and sends them to their lanes, in order.
pub(crate) struct Dispatcher {
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    /// Hash range of the shard, used to detect misrouted aggregates.
    pub(in crate::consumer) range: HashRange,
    /// Position up to which each lane was done before; records up to there are dropped.
    pub(in crate::consumer) resume: Resume,
    pub(in crate::consumer) lanes: Vec<LaneSender>,
    /// Maximum number of records in one chunk.
    pub(in crate::consumer) chunk: usize,
    /// Tags of the aggregates seen so far.
    pub(in crate::consumer) marks: Mutex<RecentDedupTags>,
    /// If true, the first lane gets an empty chunk for each read without records.
    pub(in crate::consumer) tells_empty: bool,
    pub(in crate::consumer) progress: Arc<Progress>,
    pub(in crate::consumer) vitals: Arc<ShardTelemetry>,
    /// The shard's share of the memory budget.
    pub(in crate::consumer) share: ShardBudget,
    pub(in crate::consumer) clock: Clock,
    pub(in crate::consumer) events: Events,
}

/// Result of one read.
pub(in crate::consumer) struct ReadReply {
    /// Kinesis records, which may be aggregates.
    pub(in crate::consumer) records: Vec<Record>,
    /// Memory reserved for the records until the last one is done.
    pub(in crate::consumer) room: Option<ReplyReservation>,
    /// Distance of the last record from the tip of the shard, in milliseconds.
    pub(in crate::consumer) behind_ms: u64,
    /// True if the read says that the shard is closed and has no more records.
    pub(in crate::consumer) at_end: bool,
    /// True if more records follow, or may follow.
    pub(in crate::consumer) more: bool,
}

/// Error of a dispatch to lanes that have stopped.
#[derive(Debug)]
pub(in crate::consumer) struct LanesStopped;

impl Dispatcher {
    /// Sends all records of a reply to their lanes, and waits while the lanes are full. The reply's
    /// reservation is released when its last record is done.
    pub(in crate::consumer) async fn dispatch(&self, reply: ReadReply) -> Result<(), LanesStopped> {
        let ReadReply { records, room, behind_ms, at_end, more } = reply;
        if records.is_empty() {
            return self.send_empty(behind_ms, at_end, more).await;
        }
        self.vitals.enter(FetchStep::Decode);
        self.progress.read(records.iter().map(|record| record.data.len()).sum());
        let mut slice = LaneBuffer::new(self.lanes.len(), room.map(Arc::new), behind_ms);
        let frames = frames(&records);
        let mut records = records.into_iter().zip(frames);
        while let Some((record, frame)) = records.next() {
            let sequence = record.sequence;
            let mut parts = self.deaggregate(record, frame);
            let most = self.chunk.min(records.len() + parts.len());
            if parts.len() == 0 {
                // An aggregate without records to deliver counts as done, too.
                let sub = if let DecodedRecord::Nothing { sub } = parts { sub } else { 0 };
                slice.to = Some(Position::At { sequence, sub });
            }
            // `push` does not await, so no record is held across an await.
            while let PushResult::Full = self.push(&mut parts, most, &mut slice) {
                self.send(&mut slice, false, true).await?;
            }
        }
        self.send(&mut slice, at_end, more).await
    }

    /// Moves records into the buffer of each lane, until one finds its lane's buffer full. A full
    /// buffer is sent only when the next record arrives, so that the last chunk of a reply is known
    /// to be the last.
    fn push(&self, parts: &mut DecodedRecord, most: usize, slice: &mut LaneBuffer) -> PushResult {
        if let Some(part) = slice.waits.take() {
            let lane = self.resume.lane_of(&part);
            self.push_one(part, lane, most, slice);
        }
        for part in parts {
            let lane = self.resume.lane_of(&part);
            if slice.lanes[lane].len() >= self.chunk {
                slice.waits = Some(part);
                return PushResult::Full;
            }
            self.push_one(part, lane, most, slice);
        }
        PushResult::All
    }

    #[expect(clippy::inline_always, reason = "a call would move each record twice more")]
    #[inline(always)]
    fn push_one(&self, part: UserRecord, lane: usize, most: usize, slice: &mut LaneBuffer) {
        let at = part.position();
        slice.to = Some(at);
        if !self.resume.is_done(lane, at) {
            let lane = &mut slice.lanes[lane];
            if lane.capacity() == 0 {
                lane.reserve(most);
            }
            lane.push(part);
        }
    }

    async fn send_empty(
        &self,
        behind_ms: u64,
        at_end: bool,
        more: bool,
    ) -> Result<(), LanesStopped> {
        let Some(lane) = self.lanes.first().filter(|_| self.tells_empty) else { return Ok(()) };
        let (shard, records) = (Arc::clone(&self.shard), Vec::new());
        let (room, own, place) = (None, None, None);
        let chunk = Chunk { shard, records, behind_ms, at_end, more, room, own, place };
        self.vitals.enter(FetchStep::Lanes);
        if lane.send(chunk).await { Ok(()) } else { Err(LanesStopped) }
    }

    /// Sends each lane its buffered records. If the future is dropped midway, `progress` knows
    /// which lanes have received theirs.
    async fn send(
        &self,
        slice: &mut LaneBuffer,
        at_end: bool,
        more: bool,
    ) -> Result<(), LanesStopped> {
        let Some(to) = slice.to.take() else { return Ok(()) };
        self.vitals.enter(FetchStep::Lanes);
        self.progress.note_dispatched(to, slice.lanes.iter().map(Vec::len));
        for (index, (records, lane)) in slice.lanes.iter_mut().zip(&self.lanes).enumerate() {
            if !records.is_empty() {
                let records = std::mem::take(records);
                let (shard, room) = (Arc::clone(&self.shard), slice.room.clone());
                let own = Some(self.share.reserve_chunk(records.len(), &self.clock).await);
                let (behind_ms, place) = (slice.behind_ms, None);
                let chunk = Chunk { shard, records, behind_ms, at_end, more, room, own, place };
                if !lane.send(chunk).await {
                    return Err(LanesStopped);
                }
                self.progress.note_sent(index);
            }
        }
        self.vitals.enter(FetchStep::Decode);
        Ok(())
    }

    fn deaggregate(&self, record: Record, frame: AggregateFrame) -> DecodedRecord {
        let shard = || Arc::clone(&self.shard);
        let at = Position::At { sequence: record.sequence, sub: 0 };
        match decode_framed(&record, frame, self.range) {
            DecodedAggregate::Plain(_) => DecodedRecord::Plain(std::iter::once(record.into())),
            DecodedAggregate::Records(parts) if self.is_duplicate(&parts, &record) => {
                let records = parts.len();
                self.events.emit(ShardEvent::DuplicateDropped { shard: shard(), at, records });
                DecodedRecord::Nothing { sub: records.saturating_sub(1) as u64 }
            }
            DecodedAggregate::Records(parts) => DecodedRecord::Aggregate(parts),
            DecodedAggregate::Misrouted { dropped: records, .. } => {
                self.events.emit(ShardEvent::AggregateMisrouted { shard: shard(), at, records });
                DecodedRecord::Nothing { sub: 0 }
            }
            DecodedAggregate::Partial { kept, lost: records, .. } => {
                self.events.emit(ShardEvent::AggregateUnreadable { shard: shard(), at, records });
                DecodedRecord::Aggregate(kept)
            }
        }
    }

    /// Returns true if the aggregate is a duplicate of an earlier one.
    fn is_duplicate(&self, parts: &UserRecords, record: &Record) -> bool {
        let digest = record.data.last_chunk().copied();
        parts.dedup_tag().zip(digest).is_some_and(|(mark, digest)| {
            self.dedup_tags().is_duplicate(DuplicateKey { mark, digest }, record.sequence)
        })
    }

    fn dedup_tags(&self) -> MutexGuard<'_, RecentDedupTags> {
        // A panic leaves the tags unchanged or with one more.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of [`Dispatcher::push`].
enum PushResult {
    /// All records were buffered.
    All,
    /// The next record waits in `LaneBuffer::waits`, because the buffer of its lane is full.
    Full,
}

/// Records of a reply that are not sent to the lanes yet.
struct LaneBuffer {
    /// Position of the last record processed, whether it goes to a lane or not.
    to: Option<Position>,
    /// Buffered records of each lane.
    lanes: Vec<Vec<UserRecord>>,
    /// A record whose lane buffer was full.
    waits: Option<UserRecord>,
    /// Memory reservation of the whole reply.
    room: Option<Arc<ReplyReservation>>,
    /// Distance of the reply from the tip of the shard, in milliseconds.
    behind_ms: u64,
}

impl LaneBuffer {
    fn new(lanes: usize, room: Option<Arc<ReplyReservation>>, behind_ms: u64) -> Self {
        Self { to: None, lanes: vec![Vec::new(); lanes], waits: None, room, behind_ms }
    }
}

/// The user records of one Kinesis record.
enum DecodedRecord {
    Plain(Once<UserRecord>),
    Aggregate(UserRecords),
    /// Nothing to deliver; `sub` is the last position inside the aggregate that counts as done.
    Nothing {
        sub: u64,
    },
}

impl Iterator for DecodedRecord {
    type Item = UserRecord;

    fn next(&mut self) -> Option<UserRecord> {
        match self {
            Self::Plain(one) => one.next(),
            Self::Aggregate(parts) => parts.next(),
            Self::Nothing { .. } => None,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Plain(one) => one.size_hint(),
            Self::Aggregate(parts) => parts.size_hint(),
            Self::Nothing { .. } => (0, Some(0)),
        }
    }
}

impl ExactSizeIterator for DecodedRecord {}
