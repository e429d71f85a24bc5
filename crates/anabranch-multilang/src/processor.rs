//! Shard processor that forwards the calls of a Java record processor to a child.
//!
//! A child that fails is killed. It may have held records since its last checkpoint in memory, so a
//! new one starts at that checkpoint, after a growing pause. Other shards are not affected.

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

/// State shared by all children of a daemon.
#[derive(Debug)]
pub(crate) struct DaemonContext {
    /// Settings for starting children.
    pub(crate) child: Arc<ChildSettings>,
    /// Protocol version of the messages that end a shard.
    pub(crate) shutdown_messages: ShutdownMessages,
    /// Reaction to the failure of a child.
    pub(crate) on_failure: OnChildFailure,
    /// Ends the daemon if the failure of a child requires it.
    pub(crate) fatal: CancellationToken,
    /// Children that are being shut down.
    pub(crate) reaper: Reaper,
    pub(crate) clock: Clock,
}

/// Creates the processors.
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
    nursery: Arc<DaemonContext>,
    shard: Arc<LeaseKey>,
    /// The child, from `initialize` until the shard ends or the child fails.
    child: Option<Child>,
    /// True once the child was asked to shut down.
    parts: bool,
}

/// Notifies a child that was not released that its lease is lost. This happens if the lease goes
/// while the child is initializing, before it has received a record.
impl Drop for ChildProcessor {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.nursery.reaper.release(child, self.nursery.shutdown_messages);
        }
    }
}

/// Writes a child's checkpoints to the lease.
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
    /// Sends a request to the child. After a fault the child is gone.
    async fn ask(
        &mut self,
        request: ToChild,
        checkpoints: &mut (impl CheckpointWriter + Send),
    ) -> Result<(), HandlerError> {
        let Some(child) = &mut self.child else {
            return Err(RestartProcessor::because("the child of the shard is gone").into());
        };
        match child.ask(request, checkpoints).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.fail(&fault).await),
        }
    }

    /// Kills the failed child, and returns the error for the consumer.
    async fn fail(&mut self, fault: &ChildFault) -> HandlerError {
        let pid = self.child.as_ref().map(Child::pid);
        if let Some(child) = self.child.take() {
            child.kill().await;
        }
        let shard = &self.shard.shard;
        match self.nursery.on_failure {
            OnChildFailure::Restart => {
                tracing::error!(%shard, pid, "the child failed; restarting it: {fault}");
            }
            // Java only logs this one, because the other children are about to checkpoint.
            _ if self.parts => {
                tracing::error!(%shard, pid, "the child failed during its shutdown request: \
                                              {fault}");
            }
            OnChildFailure::Exit => {
                tracing::error!(%shard, pid, "the child failed, so the daemon exits \
                                              (onChildFailure=exit): {fault}");
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
        // A caller that stops waiting drops the child and so kills it. Another worker must not
        // receive the shard while the child is still working on it.
        if let Some(child) = child.release(self.nursery.shutdown_messages).await {
            self.nursery.reaper.close(child);
        }
    }

    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), HandlerError> {
        let request = ToChild::shard_ended(self.nursery.shutdown_messages);
        let shard = Arc::clone(&self.shard);
        self.ask(request, &mut LeaseCheckpointWriter { checkpointer, shard: &shard }).await?;
        // Without a checkpoint at the end of the shard, the request is repeated.
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

    /// A child that initializes slowly, notes each action, and answers it.
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

    /// Returns a processor whose `initialize` was cancelled while its child was initializing.
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

    /// Waits until the process has ended, reaped or not.
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

    /// Checks that `end` kills a child that is initializing, without notifying it.
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
            // No owner has released it.
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
