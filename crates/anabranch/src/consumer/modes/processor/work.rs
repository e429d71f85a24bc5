//! A processor at work on its shard.

use super::{
    Checkpointer, ProcessorBatch, ProcessorFactory, Processors, ShardProcessor, ShardStart,
};
use crate::consumer::checkpoint::in_lanes_of;
use crate::consumer::modes::closure::HandlerError;
use crate::consumer::modes::{HandlerCall, ProcessingMode, Work};
use crate::consumer::progress::Progress;
use crate::lease::{LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, Layout, LeaseKey};
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, MutexGuard};

/// A processor at work on its shard.
pub struct ProcessorWork<P> {
    shard: Arc<LeaseKey>,
    start: ShardStart,
    /// The processor. Its calls never overlap, so the lock is never contended.
    processor: Mutex<P>,
    checkpointer: Checkpointer,
    /// True once `initialize` has returned `Ok`.
    begun: AtomicBool,
    /// True once `shard_ended` has returned `Ok` with everything checkpointed: no call follows it.
    ended: AtomicBool,
}

impl<P> fmt::Debug for ProcessorWork<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessorWork({})", self.shard)
    }
}

impl<S: LeaseStore, F: ProcessorFactory> ProcessingMode<S> for Processors<F> {
    type ShardWork = ProcessorWork<F::Processor>;

    fn max_records(&self) -> usize {
        self.most
    }

    fn supports_lanes(&self) -> bool {
        false
    }

    fn wants_empty_reads(&self) -> bool {
        self.empty_calls
    }

    fn work<A: StreamApi>(
        self: &Arc<Self>,
        grip: &Arc<LeaseHandle<S, A>>,
    ) -> ProcessorWork<F::Processor> {
        let shard = Arc::new(grip.key().clone());
        let lease = grip.lease();
        let at = lease.checkpoint.lowest();
        ProcessorWork {
            processor: Mutex::new(self.factory.create(&shard)),
            checkpointer: Checkpointer::new(Arc::clone(&shard), grip),
            start: ShardStart {
                shard: Arc::clone(&shard),
                lease_term: lease.term,
                at,
                pending: lease.pending.clone(),
            },
            shard,
            begun: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    async fn restart(
        self: &Arc<Self>,
        before: &ProcessorWork<F::Processor>,
        taken: &Checkpoint,
    ) -> Option<(ProcessorWork<F::Processor>, Checkpoint)> {
        let checkpointer = before.checkpointer.restart().await;
        let (work, at) = before.again(self.factory.create(&before.shard), checkpointer);
        Some((work, in_lanes_of(taken, at)))
    }
}

impl<P> ProcessorWork<P> {
    /// Replaces the processor by a new one that starts at the last checkpoint.
    fn again(&self, processor: P, checkpointer: Checkpointer) -> (Self, Position) {
        let at = checkpointer.last();
        // A prepared checkpoint stays in the row only until another one is made.
        let pending = self.start.pending.clone().filter(|_| at == self.start.at);
        let work = Self {
            shard: Arc::clone(&self.shard),
            start: ShardStart { at, pending, ..self.start.clone() },
            processor: Mutex::new(processor),
            checkpointer,
            begun: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        (work, at)
    }
}

impl<P: ShardProcessor> ProcessorWork<P> {
    /// Locks the processor without waiting, so that a check of the lease just before a call covers
    /// the call.
    fn processor(&self) -> Result<MutexGuard<'_, P>, HandlerError> {
        self.processor.try_lock().map_err(|_| {
            "an earlier call of this processor is still \
                                               running"
                .into()
        })
    }
}

impl<P: ShardProcessor> Work for ProcessorWork<P> {
    async fn begin(&self) -> Result<(), HandlerError> {
        self.processor()?.initialize(self.start.clone()).await?;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn handle(&self, call: HandlerCall<'_>) -> Result<(), HandlerError> {
        let mut processor = self.processor()?;
        if let Some(last) = call.records.last().map(UserRecord::position) {
            self.checkpointer.note_delivered(last);
        }
        let batch = ProcessorBatch {
            shard: Arc::clone(&self.shard),
            records: call.records.to_vec(),
            millis_behind_latest: Some(call.behind_ms),
            at_shard_end: call.at_end,
        };
        processor.process_records(batch, &self.checkpointer).await
    }

    fn checkpoint_for(&self, _: &Progress, _: Layout) -> Option<Checkpoint> {
        None
    }

    async fn ended(&self) -> Result<(), HandlerError> {
        self.checkpointer.at_end();
        self.processor()?.shard_ended(&self.checkpointer).await?;
        if self.checkpointer.has_ended() {
            self.ended.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err("shard_ended returned without a checkpoint at the shard's end: call \
             checkpointer.checkpoint() in it; until then the child shards are not read"
            .into())
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    async fn stopping(&self) -> Result<(), HandlerError> {
        if self.has_ended() {
            return Ok(());
        }
        self.processor()?.shutdown_requested(&self.checkpointer).await
    }

    async fn closed(&self) {
        if self.begun.load(Ordering::Relaxed)
            && !self.has_ended()
            && let Ok(mut processor) = self.processor()
        {
            processor.lease_lost().await;
        }
    }
}
