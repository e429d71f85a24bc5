//! Reading one shard without a lease: for readers that store nothing.

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

/// Records that go together, at most.
const CHUNK: usize = 1_000;

/// What reading any shard without a lease needs.
pub(crate) struct LeaselessReader<A> {
    /// The service.
    pub(crate) api: Arc<A>,
    /// The streams' summaries, which all shards share.
    pub(crate) summaries: Arc<Summaries>,
    /// The memory that the records of all shards may take.
    pub(crate) budget: MemoryBudget,
    /// The longest pause between two reads of an idle shard, in milliseconds.
    pub(crate) idle_poll_ms: u64,
    /// Where it reads the time.
    pub(crate) clock: Clock,
    /// Where it draws random numbers.
    pub(crate) chance: Rng,
    /// Who wants to know.
    pub(crate) events: Events,
}

/// Where to begin.
pub(crate) struct LeaselessStart {
    /// An iterator that stands there already.
    pub(crate) iterator: Option<ShardIterator>,
    /// Where to ask for one.
    pub(crate) from: ReadFrom,
}

impl<A: StreamApi> LeaselessReader<A> {
    /// Reads a shard into `chunks`, which is also told of reads without records. Returns how it
    /// ended, and where to read on.
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
