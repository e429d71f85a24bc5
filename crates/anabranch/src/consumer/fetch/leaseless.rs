//! Reading of one shard without a lease, for readers that store nothing.

use super::poll::PollingReader;
use super::{FetchContext, FetchEnd};
use crate::clock::{Clock, Rng};
use crate::consumer::dispatch::dispatcher::Dispatcher;
use crate::consumer::dispatch::lane::{Chunk, LaneSender};
use crate::consumer::dispatch::memory::MemoryBudget;
use crate::consumer::dispatch::resume::Resume;
use crate::consumer::health::telemetry::ShardTelemetry;
use crate::consumer::progress::Progress;
use crate::event::Events;
use crate::stream::api::{ReadFrom, ShardIterator, StreamApi};
use crate::stream::summaries::Summaries;
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Maximum number of records in one chunk.
const CHUNK: usize = 1_000;

/// Context for reading any shard without a lease.
pub(crate) struct LeaselessReader<A> {
    pub(crate) api: Arc<A>,
    /// Stream summaries, shared by all shards.
    pub(crate) summaries: Arc<Summaries>,
    /// Memory budget of all shards.
    pub(crate) budget: MemoryBudget,
    /// Maximum pause between two reads of an idle shard, in milliseconds.
    pub(crate) idle_poll_ms: u64,
    pub(crate) clock: Clock,
    pub(crate) chance: Rng,
    pub(crate) events: Events,
}

/// Start position of a reading.
pub(crate) struct LeaselessStart {
    /// Iterator at the start position, if the caller already has one.
    pub(crate) iterator: Option<ShardIterator>,
    /// Position at which to request an iterator otherwise.
    pub(crate) from: ReadFrom,
}

impl<A: StreamApi> LeaselessReader<A> {
    /// Reads a shard into `chunks`, which also receives an empty chunk for each read without
    /// records. Returns the reason of the end and the position at which to resume.
    pub(crate) async fn read(
        &self,
        shard: &Arc<LeaseKey>,
        range: HashRange,
        begin: LeaselessStart,
        chunks: mpsc::Sender<Chunk>,
    ) -> (FetchEnd, ReadFrom) {
        let start = Checkpoint::at(Position::TrimHorizon);
        let resume = Resume::in_one_lane(&start);
        let progress = Arc::new(Progress::new(&resume));
        let feed = Dispatcher {
            shard: Arc::clone(shard),
            range,
            resume,
            lanes: vec![LaneSender::bounded_by_chunks(chunks)],
            chunk: CHUNK,
            marks: Mutex::default(),
            tells_empty: true,
            progress: Arc::clone(&progress),
            vitals: Arc::new(ShardTelemetry::new(Arc::clone(shard), start)),
            share: self.budget.share(),
            clock: self.clock.clone(),
            events: self.events.clone(),
        };
        let source = FetchContext {
            api: Arc::clone(&self.api),
            feed,
            latest: Arc::default(),
            summaries: Arc::clone(&self.summaries),
            clock: self.clock.clone(),
            chance: self.chance.clone(),
        };
        let (idle_poll_ms, first) = (self.idle_poll_ms, begin.iterator);
        let poll = PollingReader { source, idle_poll_ms, first, ends_refused: true };
        let end = poll.run(begin.from, CancellationToken::new()).await;
        let on = match progress.dispatched_up_to() {
            Position::At { sequence, .. } => ReadFrom::After(sequence),
            _ => begin.from,
        };
        (end, on)
    }
}
