//! Taking records apart and giving them to their lanes.

use super::budget::Room;
use super::lanes::Chunk;
use super::progress::Progress;
use super::resume::Resume;
use crate::event::{Events, ShardEvent};
use anabranch_model::aggregate::decode::{Decoded, SubRecords, decode};
use anabranch_model::hash::HashRange;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use anabranch_model::record::{Record, UserRecord};
use std::iter::Once;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Takes records apart and gives them to their lanes, in order.
pub(super) struct Feed {
    /// Which shard.
    pub(super) shard: Arc<LeaseKey>,
    /// The keys that the shard takes.
    pub(super) range: HashRange,
    /// What was done before.
    pub(super) resume: Resume,
    /// The lanes.
    pub(super) lanes: Vec<mpsc::Sender<Chunk>>,
    /// How many records of one lane go together.
    pub(super) chunk: usize,
    /// Where the shard stands.
    pub(super) progress: Arc<Progress>,
    /// Who wants to know.
    pub(super) events: Events,
}

/// Nobody takes the records: the lanes have stopped.
#[derive(Debug)]
pub(super) struct LanesStopped;

impl Feed {
    /// Gives all records of a reply to their lanes, and waits while those are full. The reply's
    /// room is free again when the last of them is done.
    pub(super) async fn give(&self, records: Vec<Record>, room: Room) -> Result<(), LanesStopped> {
        let room = Arc::new(room);
        let mut slice = Slice::new(self.lanes.len());
        for record in records {
            // An aggregate of which nothing is delivered is done too.
            slice.to = Some(Position::At { sequence: record.sequence, sub: 0 });
            for part in self.take_apart(record) {
                let (lane, at) = (self.resume.lane_of(&part), part.position());
                slice.to = Some(at);
                if self.resume.is_done(lane, at) {
                    continue;
                }
                slice.lanes[lane].push(part);
                if slice.lanes[lane].len() >= self.chunk {
                    self.send(&mut slice, &room).await?;
                }
            }
        }
        self.send(&mut slice, &room).await
    }

    async fn send(&self, slice: &mut Slice, room: &Arc<Room>) -> Result<(), LanesStopped> {
        let Some(to) = slice.to.take() else { return Ok(()) };
        self.progress.give(to, slice.lanes.iter().map(Vec::len));
        for (records, lane) in slice.lanes.iter_mut().zip(&self.lanes) {
            if !records.is_empty() {
                let records = std::mem::take(records);
                let chunk = Chunk { records, room: Arc::clone(room) };
                lane.send(chunk).await.map_err(|_| LanesStopped)?;
            }
        }
        Ok(())
    }

    fn take_apart(&self, record: Record) -> Parts {
        let shard = || Arc::clone(&self.shard);
        let at = Position::At { sequence: record.sequence, sub: 0 };
        match decode(&record, self.range) {
            Decoded::Plain(_) => Parts::Plain(std::iter::once(record.into())),
            Decoded::Records(parts) => Parts::Aggregate(parts),
            Decoded::OutOfRange { dropped: records, .. } => {
                self.events.emit(ShardEvent::AggregateDropped { shard: shard(), at, records });
                Parts::Nothing
            }
            Decoded::Partial { kept, lost: records, .. } => {
                self.events.emit(ShardEvent::AggregateCut { shard: shard(), at, records });
                Parts::Aggregate(kept)
            }
        }
    }
}

/// Records on their way to the lanes.
struct Slice {
    /// The last record looked at, whether it goes to a lane or not.
    to: Option<Position>,
    /// The records of each lane.
    lanes: Vec<Vec<UserRecord>>,
}

impl Slice {
    fn new(lanes: usize) -> Self {
        Self { to: None, lanes: vec![Vec::new(); lanes] }
    }
}

/// What a record of the stream holds.
enum Parts {
    Plain(Once<UserRecord>),
    Aggregate(SubRecords),
    Nothing,
}

impl Iterator for Parts {
    type Item = UserRecord;

    fn next(&mut self) -> Option<UserRecord> {
        match self {
            Self::Plain(one) => one.next(),
            Self::Aggregate(parts) => parts.next(),
            Self::Nothing => None,
        }
    }
}
