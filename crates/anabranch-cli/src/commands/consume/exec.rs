//! Child processes of `--exec`: one for each shard that is being read.

use super::child::{self, ChildRecord, NotDone, ProcessGroup};
use anabranch::consumer::{HandlerError, Interrupted};
use anabranch_model::ids::ShardId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Queue capacity of a child. The number of lanes bounds the queue anyway.
const WAITING: usize = 1_024;
/// Time for children to exit after their input ended.
const CHILDREN_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Error for a record that came too late for its child.
const GONE: &str = "the program exited before it received the record";
/// Time to wait for a stop signal after a child has exited: a service manager may have signalled
/// both, as it does for all processes of a service.
const SIGNAL_GRACE: Duration = Duration::from_millis(200);

/// The child processes. Clones share them.
#[derive(Clone)]
pub(crate) struct Exec {
    /// Shell command.
    command: Arc<str>,
    /// Timeout for one record.
    timeout: Duration,
    /// Cancelled when the command is asked to stop.
    stopping: CancellationToken,
    /// Children by shard, and the tasks that own them.
    crew: Arc<Mutex<Children>>,
}

#[derive(Default)]
struct Children {
    /// The child of each shard.
    hands: BTreeMap<ShardId, ChildHandle>,
    /// One task per child.
    tasks: JoinSet<()>,
}

/// A handle to a child.
#[derive(Clone)]
struct ChildHandle {
    /// Queue of its records.
    asks: mpsc::Sender<ChildRecord>,
    /// Its process group.
    leader: Arc<ProcessGroup>,
}

/// Kills a child on drop if its answer is still pending: another worker may own the shard by now,
/// and the child's effects would come late.
struct KillOnCancel(Option<Arc<ProcessGroup>>);

impl Drop for KillOnCancel {
    fn drop(&mut self) {
        if let Some(leader) = &self.0 {
            leader.kill();
        }
    }
}

impl Exec {
    /// Creates an empty set of children that run `command`. Each child starts with its first
    /// record.
    pub(crate) fn new(command: &str, timeout: Duration) -> Self {
        let stopping = CancellationToken::new();
        Self { command: command.into(), timeout, stopping, crew: Arc::default() }
    }

    /// Sets the token after whose cancellation failures are not attributed to records.
    pub(crate) fn until(mut self, stopping: CancellationToken) -> Self {
        self.stopping = stopping;
        self
    }

    /// Sends a record to the child of its shard, and waits for the answer.
    pub(crate) async fn send(&self, shard: &ShardId, line: String) -> Result<(), HandlerError> {
        let (answer, answered) = oneshot::channel();
        let ChildHandle { asks, leader } = self.child_for(shard);
        if asks.send(ChildRecord { line, answer }).await.is_err() {
            return Err(Interrupted::because(GONE).into());
        }
        let mut unanswered = KillOnCancel(Some(leader));
        let gone = |_| Err(NotDone::Interrupted(GONE.to_owned()));
        let answer = answered.await.unwrap_or_else(gone);
        unanswered.0 = None;
        match answer {
            Ok(()) => Ok(()),
            Err(not_done) => Err(self.blame(not_done).await),
        }
    }

    /// Returns the error for an unfinished record: a failure of the record, or an interruption.
    async fn blame(&self, not_done: NotDone) -> HandlerError {
        let why = match not_done {
            NotDone::Interrupted(why) => return Interrupted::because(why).into(),
            NotDone::Failed(why) if !self.stopping.is_cancelled() => return why.into(),
            NotDone::Failed(why) | NotDone::ChildExited(why) => why,
        };
        match tokio::time::timeout(SIGNAL_GRACE, self.stopping.cancelled()).await {
            Ok(()) => Interrupted::because(why).into(),
            Err(_) => why.into(),
        }
    }

    /// Returns the child of a shard, and starts a new one if it has ended.
    fn child_for(&self, shard: &ShardId) -> ChildHandle {
        // The map is changed in single steps, so a panic leaves no partial change.
        let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        while crew.tasks.try_join_next().is_some() {}
        if let Some(hand) = crew.hands.get(shard).filter(|hand| !hand.asks.is_closed()) {
            return hand.clone();
        }
        let (asks, waiting) = mpsc::channel(WAITING);
        let hand = ChildHandle { asks, leader: Arc::default() };
        crew.hands.insert(shard.clone(), hand.clone());
        crew.tasks.spawn(child::run(
            Arc::clone(&self.command),
            shard.clone(),
            self.timeout,
            waiting,
            Arc::clone(&hand.leader),
        ));
        hand
    }

    /// Closes the input of a shard's child, because the shard is no longer read.
    pub(crate) fn close_shard(&self, shard: &ShardId) {
        let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        crew.hands.remove(shard);
    }

    /// Closes the input of all children and waits up to `patience`. Kills the remaining ones.
    pub(crate) async fn close(&self, patience: Duration) {
        let mut tasks = {
            let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
            crew.hands.clear();
            std::mem::take(&mut crew.tasks)
        };
        let all = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(patience.min(CHILDREN_EXIT_TIMEOUT), all).await;
        // Remaining children are killed with their tasks.
        tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_whose_shard_went_does_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let (begun, done) = (folder.path().join("begun"), folder.path().join("done"));
        let command = format!(
            "read line; echo > {}; sleep 1; echo > {}; echo ok; cat",
            begun.display(),
            done.display()
        );
        let exec = Exec::new(&command, Duration::from_mins(1));
        let shard = ShardId::from("shardId-000000000000");
        {
            let mut hand = std::pin::pin!(exec.send(&shard, "{}\n".to_owned()));
            while !begun.exists() {
                let step = tokio::time::timeout(Duration::from_millis(20), &mut hand).await;
                assert!(step.is_err(), "it answers after a second");
            }
        }
        exec.close_shard(&shard);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!done.exists(), "it went on after nobody waited");
        exec.close(CHILDREN_EXIT_TIMEOUT).await;
    }
}
