//! Taking records apart and giving them to their lanes.

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

/// Takes records apart and gives them to their lanes, in order.
pub(crate) struct Dispatcher {
    /// Which shard.
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    /// The keys that the shard takes.
    pub(in crate::consumer) range: HashRange,
    /// What was done before.
    pub(in crate::consumer) resume: Resume,
    /// The lanes.
    pub(in crate::consumer) lanes: Vec<LaneSender>,
    /// How many records of one lane go together.
    pub(in crate::consumer) chunk: usize,
    /// The marks of the aggregates that were met.
    pub(in crate::consumer) marks: Mutex<RecentDedupTags>,
    /// Whether the first lane is told of reads that gave no records.
    pub(in crate::consumer) tells_empty: bool,
    /// Where the shard stands.
    pub(in crate::consumer) progress: Arc<Progress>,
    /// Its signs of life.
    pub(in crate::consumer) vitals: Arc<ShardTelemetry>,
    /// The memory that the records may take.
    pub(in crate::consumer) share: ShardBudget,
    /// The worker's clock.
    pub(in crate::consumer) clock: Clock,
    /// Who wants to know.
    pub(in crate::consumer) events: Events,
}

/// What one read gave.
pub(in crate::consumer) struct ReadReply {
    /// The records. They may be aggregates.
    pub(in crate::consumer) records: Vec<Record>,
    /// The memory that they take, until the last of them is done.
    pub(in crate::consumer) room: Option<ReplyReservation>,
    /// How far the last of them is behind the shard's newest, in milliseconds.
    pub(in crate::consumer) behind_ms: u64,
    /// Whether the closed shard has no more.
    pub(in crate::consumer) at_end: bool,
    /// Whether more is behind it, or may be.
    pub(in crate::consumer) more: bool,
}

/// Nobody takes the records: the lanes have stopped.
#[derive(Debug)]
pub(in crate::consumer) struct LanesStopped;

impl Dispatcher {
    /// Gives all records of a reply to their lanes, and waits while those are full. The reply's
    /// room is free again when the last of them is done.
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
                // An aggregate of which nothing is delivered is done too.
                let sub = if let DecodedRecord::Nothing { sub } = parts { sub } else { 0 };
                slice.to = Some(Position::At { sequence, sub });
            }
            // What lays them in waits for nothing, so no part is kept and moved across a wait.
            while let PushResult::Full = self.push(&mut parts, most, &mut slice) {
                self.send(&mut slice, false, true).await?;
            }
        }
        self.send(&mut slice, at_end, more).await
    }

    /// Lays parts into the slice of each lane, until one has to wait because its lane's is full. A
    /// full slice goes when more comes, so that the last one is known to be the last.
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

    /// Sends each lane its records. Dropped in the middle, it leaves in `progress` who has them.
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

    /// Whether an aggregate is the second copy of one that was met before.
    fn is_duplicate(&self, parts: &UserRecords, record: &Record) -> bool {
        let digest = record.data.last_chunk().copied();
        parts.dedup_tag().zip(digest).is_some_and(|(mark, digest)| {
            self.dedup_tags().is_duplicate(DuplicateKey { mark, digest }, record.sequence)
        })
    }

    fn dedup_tags(&self) -> MutexGuard<'_, RecentDedupTags> {
        // A thread that panicked half-way left the marks as they were, or with one more.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How parts were laid into a slice.
enum PushResult {
    /// All of them.
    All,
    /// The next one waits: the slice of its lane is full.
    Full,
}

/// Records on their way to the lanes.
struct LaneBuffer {
    /// The last record looked at, whether it goes to a lane or not.
    to: Option<Position>,
    /// The records of each lane.
    lanes: Vec<Vec<UserRecord>>,
    /// One that found its lane's full.
    waits: Option<UserRecord>,
    /// The memory that they share with the rest of their reply.
    room: Option<Arc<ReplyReservation>>,
    /// How far the reply is behind the shard's newest record, in milliseconds.
    behind_ms: u64,
}

impl LaneBuffer {
    fn new(lanes: usize, room: Option<Arc<ReplyReservation>>, behind_ms: u64) -> Self {
        Self { to: None, lanes: vec![Vec::new(); lanes], waits: None, room, behind_ms }
    }
}

/// What a record of the stream holds.
enum DecodedRecord {
    Plain(Once<UserRecord>),
    Aggregate(UserRecords),
    /// Nothing to deliver; the last place inside that is done with it.
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
