//! A scripted processor, which records its calls.

use crate::oracle::Oracle;
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::{
    Checkpointer, HandlerError, ProcessorBatch, RestartProcessor, ShardProcessor, ShardStart,
};
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Script of the processors of a test, and a record of their calls.
#[derive(Default)]
pub(super) struct ProcessorScript {
    /// Receives the records.
    pub(super) oracle: Oracle,
    /// Every call, in order: the shard's last digit and the call.
    pub(super) calls: Mutex<Vec<String>>,
    /// Every start.
    pub(super) starts: Mutex<Vec<ShardStart>>,
    /// The last checkpointer.
    pub(super) checkpointer: Mutex<Option<Checkpointer>>,
    /// Number of `initialize` calls that still have to fail.
    pub(super) bad_starts: AtomicUsize,
    /// Number of `process_records` calls that still have to fail.
    pub(super) bad_batches: AtomicUsize,
    /// Number of calls of any kind that still have to require a restart of the processor.
    pub(super) broken: AtomicUsize,
    /// If true, nothing is checkpointed after a batch.
    pub(super) lazy: AtomicBool,
    /// If true, nothing is checkpointed at the end of a shard.
    pub(super) forgetful: AtomicBool,
    /// If true, `process_records` never returns.
    pub(super) hangs: AtomicBool,
    /// Positions of the records handed out, in order.
    pub(super) positions: Mutex<Vec<Position>>,
    /// Duration of the next `initialize`, in milliseconds.
    pub(super) start_ms: AtomicU64,
    /// Time that the next `shard_ended` takes before it checkpoints, in milliseconds.
    pub(super) end_ms: AtomicU64,
    /// Duration of `lease_lost`, in milliseconds.
    pub(super) loss_ms: AtomicU64,
}

pub(super) struct ScriptedProcessor {
    script: Arc<ProcessorScript>,
    shard: Arc<LeaseKey>,
    by: &'static str,
}

impl ProcessorScript {
    pub(super) fn of(world: &ConsumerFixture) -> Arc<Self> {
        Arc::new(Self { oracle: world.oracle.clone(), ..Self::default() })
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    pub(super) fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|it| it.ends_with(call)).count()
    }

    pub(super) fn checkpointer(&self) -> Checkpointer {
        self.checkpointer.lock().unwrap().clone().unwrap()
    }
}

impl ScriptedProcessor {
    fn note(&self, call: &str) {
        let digit = self.shard.shard.as_str().chars().last().unwrap();
        self.script.calls.lock().unwrap().push(format!("{digit} {call}"));
    }
}

/// Returns true if this call is one of those that fail.
fn strikes(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl ShardProcessor for ScriptedProcessor {
    async fn initialize(&mut self, start: ShardStart) -> Result<(), HandlerError> {
        self.note("initialize");
        self.script.starts.lock().unwrap().push(start);
        pause(self.script.start_ms.swap(0, Ordering::SeqCst)).await;
        if strikes(&self.script.broken) {
            return Err(RestartProcessor::because("broken").into());
        }
        if strikes(&self.script.bad_starts) { Err("bad start".into()) } else { Ok(()) }
    }

    async fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        *self.script.checkpointer.lock().unwrap() = Some(checkpointer.clone());
        self.note(&format!("process {}", batch.records.len()));
        if self.script.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if strikes(&self.script.broken) {
            return Err(RestartProcessor::because("broken").into());
        }
        if strikes(&self.script.bad_batches) {
            return Err("bad batch".into());
        }
        for record in &batch.records {
            let key = record.partition_key.as_str();
            self.script.positions.lock().unwrap().push(record.position());
            self.script.oracle.delivered(key, &record.data, self.by);
        }
        if !self.script.lazy.load(Ordering::SeqCst) {
            checkpointer.checkpoint().await?;
        }
        Ok(())
    }

    async fn lease_lost(&mut self) {
        self.note("lease_lost");
        pause(self.script.loss_ms.load(Ordering::SeqCst)).await;
        self.note("heard");
    }

    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), HandlerError> {
        self.note("shard_ended");
        pause(self.script.end_ms.swap(0, Ordering::SeqCst)).await;
        if strikes(&self.script.broken) {
            return Err(RestartProcessor::because("broken").into());
        }
        if !self.script.forgetful.load(Ordering::SeqCst) {
            checkpointer.checkpoint().await?;
        }
        self.note("ended");
        Ok(())
    }

    async fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        self.note("shutdown_requested");
        checkpointer.checkpoint().await?;
        Ok(())
    }
}

pub(super) fn processors(
    script: &Arc<ProcessorScript>,
    by: &'static str,
) -> impl Fn(&Arc<LeaseKey>) -> ScriptedProcessor + use<> {
    let script = Arc::clone(script);
    move |shard| ScriptedProcessor { script: Arc::clone(&script), shard: Arc::clone(shard), by }
}

pub(super) fn worker(
    world: &ConsumerFixture,
    script: &Arc<ProcessorScript>,
    by: &'static str,
    seed: u64,
) -> RunningWorker {
    RunningWorker::start(world.consumer(seed).processors(processors(script, by)))
}

/// Creates a stream of one shard with ten records, and a script that `tell` configures.
pub(super) fn staged(
    tell: impl FnOnce(&ProcessorScript),
) -> (ConsumerFixture, Arc<ProcessorScript>) {
    let world = ConsumerFixture::new(1);
    let script = ProcessorScript::of(&world);
    tell(&script);
    world.put_round(10);
    (world, script)
}
