//! The processor of a shard: a child that is told what a Java processor would be told.
//!
//! A child that fails is killed. What it had been given since its last checkpoint it may have held
//! in memory, so a new one is started at that checkpoint, after a pause that grows. Other shards
//! don't notice.

use crate::child::{CheckpointWriter, Child, ChildSettings, NoCheckpoints};
use crate::config::OnChildFailure;
use crate::protocol::{ShutdownMessages, ToChild};
use crate::reaper::Reaper;
use crate::session::{CheckpointPositionError, ChildCheckpoint, ChildFault, ILLEGAL_ARGUMENT};
use anabranch::clock::Clock;
use anabranch::consumer::{
    Checkpointer, HandlerError, ProcessorBatch, ProcessorFactory, RestartProcessor, ShardProcessor,
    ShardStart,
};
use anabranch_model::lease::LeaseKey;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What all children of a daemon share.
#[derive(Debug)]
pub(crate) struct DaemonContext {
    /// What each is started with.
    pub(crate) child: Arc<ChildSettings>,
    /// How each is told that its shard is over.
    pub(crate) shutdown_messages: ShutdownMessages,
    /// What follows from the failure of one.
    pub(crate) on_failure: OnChildFailure,
    /// Ends the daemon, if the failure of a child is to end it.
    pub(crate) fatal: CancellationToken,
    /// Those on their way out.
    pub(crate) reaper: Reaper,
    /// The daemon's clock.
    pub(crate) clock: Clock,
}

/// Makes the processors.
pub(crate) struct ChildProcessorFactory(pub(crate) Arc<DaemonContext>);

impl ProcessorFactory for ChildProcessorFactory {
    type Processor = ChildProcessor;

    fn create(&self, shard: &Arc<LeaseKey>) -> ChildProcessor {
        let (nursery, shard) = (Arc::clone(&self.0), Arc::clone(shard));
        ChildProcessor { nursery, shard, child: None, parts: false }
    }
}

/// The processor of one shard.
pub(crate) struct ChildProcessor {
    /// What all children share.
    nursery: Arc<DaemonContext>,
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// The child, from `initialize` until the shard is over or the child is at fault.
    child: Option<Child>,
    /// Whether the child was told to stop.
    parts: bool,
}

/// A child that nobody has parted with is told that its lease is lost: it went while the child was
/// getting ready, with no record in its hands.
impl Drop for ChildProcessor {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.nursery.reaper.release(child, self.nursery.shutdown_messages);
        }
    }
}

/// A child's checkpoints go to the lease.
struct LeaseCheckpointWriter<'a> {
    checkpointer: &'a Checkpointer,
    shard: &'a LeaseKey,
}

impl CheckpointWriter for LeaseCheckpointWriter<'_> {
    async fn write_checkpoint(&mut self, wanted: &ChildCheckpoint) -> Result<(), String> {
        let written = match wanted.position() {
            Err(CheckpointPositionError) => return Err(ILLEGAL_ARGUMENT.to_owned()),
            Ok(None) => self.checkpointer.checkpoint().await,
            Ok(Some(position)) => self.checkpointer.checkpoint_at(position).await,
        };
        written.map_err(|error| {
            let shard = &self.shard.shard;
            tracing::warn!(%shard, "a checkpoint of the child was not written: {error}");
            error.java_name().to_owned()
        })
    }
}

impl ChildProcessor {
    /// Asks the child. One that is at fault is gone afterwards.
    async fn ask(
        &mut self,
        request: ToChild,
        checkpoints: &mut (impl CheckpointWriter + Send),
    ) -> Result<(), HandlerError> {
        let Some(child) = &mut self.child else {
            return Err(RestartProcessor::because("its child is gone").into());
        };
        match child.ask(request, checkpoints).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.fail(&fault).await),
        }
    }

    /// The child is at fault.
    async fn fail(&mut self, fault: &ChildFault) -> HandlerError {
        let pid = self.child.as_ref().map(Child::pid);
        if let Some(child) = self.child.take() {
            child.kill().await;
        }
        let shard = &self.shard.shard;
        match self.nursery.on_failure {
            OnChildFailure::Restart => {
                tracing::error!(%shard, pid, "the child failed and is started again: {fault}");
            }
            // Java only logs this one: the others are about to checkpoint.
            _ if self.parts => {
                tracing::error!(%shard, pid, "the child failed while it was told to stop: {fault}");
            }
            OnChildFailure::Exit => {
                tracing::error!(%shard, pid, "the child failed, and so does the daemon (onChildFailure=exit): {fault}");
                self.nursery.fatal.cancel();
            }
        }
        RestartProcessor::because(fault.to_string()).into()
    }
}

impl ShardProcessor for ChildProcessor {
    async fn initialize(&mut self, start: ShardStart) -> Result<(), HandlerError> {
        let nursery = &self.nursery;
        let shard = self.shard.shard.as_str();
        match Child::start(&nursery.child, shard, &nursery.clock) {
            Ok(child) => self.child = Some(nursery.reaper.adopt(child)),
            Err(fault) => return Err(self.fail(&fault).await),
        }
        let request = ToChild::initialize(shard, start.at);
        self.ask(request, &mut NoCheckpoints).await
    }

    async fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        let request = ToChild::process_records(&batch.records, batch.millis_behind_latest);
        let shard = Arc::clone(&self.shard);
        self.ask(request, &mut LeaseCheckpointWriter { checkpointer, shard: &shard }).await
    }

    async fn lease_lost(&mut self) {
        let Some(child) = self.child.take() else { return };
        // Whoever does not wait any longer drops the child, and so kills it: nobody else may be
        // given the shard while it is still at work.
        if let Some(child) = child.release(self.nursery.shutdown_messages).await {
            self.nursery.reaper.close(child);
        }
    }

    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), HandlerError> {
        let request = ToChild::shard_ended(self.nursery.shutdown_messages);
        let shard = Arc::clone(&self.shard);
        self.ask(request, &mut LeaseCheckpointWriter { checkpointer, shard: &shard }).await?;
        // Without a checkpoint at the end it is asked again.
        if checkpointer.has_ended()
            && let Some(child) = self.child.take()
        {
            self.nursery.reaper.close(child);
        }
        Ok(())
    }

    async fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        let shard = Arc::clone(&self.shard);
        let mut checkpoints = LeaseCheckpointWriter { checkpointer, shard: &shard };
        self.parts = true;
        self.ask(ToChild::shutdown_requested(), &mut checkpoints).await
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use anabranch_model::position::Position;
    use std::path::Path;

    /// A child that takes its time to get ready, notes each action, and answers it.
    const SLOW_STARTER: &str = r#"while read -r line; do
        action=$(printf '%s' "$line" | sed 's/.*{"action":"\([a-zA-Z]*\)".*/\1/')
        echo "$action" >> NOTES
        if [ "$action" = initialize ]; then touch NOTES.begun; sleep 0.5; fi
        echo "{\"action\":\"status\",\"responseFor\":\"$action\"}"
    done"#;

    fn nursery(notes: &Path) -> Arc<DaemonContext> {
        let script = SLOW_STARTER.replace("NOTES", &notes.display().to_string());
        Arc::new(DaemonContext {
            child: Arc::new(ChildSettings {
                command: vec!["sh".to_owned(), "-c".to_owned(), script],
                silence_ms: None,
                exit_ms: 20_000,
                inherit_stderr: false,
            }),
            shutdown_messages: ShutdownMessages::Kcl2,
            on_failure: OnChildFailure::Restart,
            fatal: CancellationToken::new(),
            reaper: Reaper::open(),
            clock: Clock::machine(),
        })
    }

    /// A processor whose `initialize` was given up while its child was at it.
    async fn given_up(nursery: &Arc<DaemonContext>, notes: &Path) -> ChildProcessor {
        let key = Arc::new(LeaseKey::new("stream", "shardId-000000000000"));
        let mut processor = ChildProcessorFactory(Arc::clone(nursery)).create(&key);
        let start =
            ShardStart { shard: key, lease_term: 1, at: Position::TrimHorizon, pending: None };
        let begun = notes.with_extension("begun");
        tokio::select! {
            biased;
            _ = processor.initialize(start) => panic!("it takes its time"),
            () = async { while !begun.exists() { nursery.clock.sleep(10).await } } => {}
        }
        processor
    }

    #[tokio::test]
    async fn a_child_that_is_getting_ready_is_told_of_the_loss_of_its_lease() {
        for parts in [false, true] {
            let folder = tempfile::tempdir().expect("a folder can be made");
            let notes = folder.path().join("notes");
            let nursery = nursery(&notes);
            let mut processor = given_up(&nursery, &notes).await;
            if parts {
                processor.lease_lost().await;
            }
            drop(processor);
            nursery.reaper.wait_all().await;
            let heard = std::fs::read_to_string(&notes).expect("it has notes");
            assert_eq!(heard, "initialize\nleaseLost\n", "parts: {parts}");
        }
    }

    /// Waits until the process has ended. Whether someone has reaped it does not matter.
    fn until_dead(processor: &ChildProcessor) -> impl Future<Output = ()> + use<> {
        let pid = processor.child.as_ref().map(Child::pid).expect("it has a child");
        let clock = processor.nursery.clock.clone();
        let is_there = move || std::fs::read_to_string(format!("/proc/{pid}/stat"));
        async move {
            for _ in 0..3_000 {
                if is_there().map_or(true, |stat| stat.contains(") Z ")) {
                    return;
                }
                clock.sleep(10).await;
            }
            panic!("it lives on");
        }
    }

    /// `end` is the end of a child that is getting ready: it is killed, and told nothing.
    async fn check_killed(end: impl AsyncFnOnce(ChildProcessor, &DaemonContext)) {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let notes = folder.path().join("notes");
        let nursery = nursery(&notes);
        let processor = given_up(&nursery, &notes).await;
        let dead = until_dead(&processor);
        end(processor, &nursery).await;
        dead.await;
        let heard = std::fs::read_to_string(&notes).expect("it has notes");
        assert_eq!(heard, "initialize\n");
    }

    #[tokio::test]
    async fn a_child_is_killed_where_nobody_waits_for_it_any_longer() {
        check_killed(async |processor, nursery| {
            nursery.reaper.kill_all();
            drop(processor);
        })
        .await;
        check_killed(async |processor, nursery| {
            let dead = until_dead(&processor);
            nursery.reaper.kill_all();
            // Nobody has let go of it.
            dead.await;
            drop(processor);
        })
        .await;
        check_killed(async |mut processor, nursery| {
            tokio::select! {
                biased;
                () = processor.lease_lost() => panic!("it is still getting ready"),
                () = nursery.clock.sleep(1) => {}
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_child_that_is_started_too_late_is_killed() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let nursery = nursery(&folder.path().join("notes"));
        nursery.reaper.kill_all();
        let key = Arc::new(LeaseKey::new("stream", "shardId-000000000000"));
        let mut processor = ChildProcessorFactory(Arc::clone(&nursery)).create(&key);
        let start =
            ShardStart { shard: key, lease_term: 1, at: Position::TrimHorizon, pending: None };
        assert!(processor.initialize(start).await.is_err(), "it has no child");
    }
}
