//! The children of `--exec`: one for each shard that is being read.

use super::child::{self, Ask};
use anabranch::consumer::HandlerError;
use anabranch_model::ids::ShardId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Records that may wait for a child to take them. Lanes bound what can wait.
const WAITING: usize = 1_024;
/// How long children get to end by themselves once nothing more comes.
const FAREWELL: Duration = Duration::from_secs(5);

/// The children. Clones share them.
#[derive(Clone)]
pub(crate) struct Exec {
    /// What the shell runs.
    command: Arc<str>,
    /// How long a record may take.
    timeout: Duration,
    /// The children by shard, and the tasks that own them.
    crew: Arc<Mutex<Crew>>,
}

#[derive(Default)]
struct Crew {
    /// Where the child of a shard takes its records.
    asks: BTreeMap<ShardId, mpsc::Sender<Ask>>,
    /// One task for each child.
    tasks: JoinSet<()>,
}

impl Exec {
    /// Children that run `command`. None is started before its first record.
    pub(crate) fn new(command: &str, timeout: Duration) -> Self {
        Self { command: command.into(), timeout, crew: Arc::default() }
    }

    /// Hands a record to the child of its shard, and waits for the answer.
    pub(crate) async fn hand(&self, shard: &ShardId, line: String) -> Result<(), HandlerError> {
        let (answer, answered) = oneshot::channel();
        let asks = self.asks(shard);
        let gone = || HandlerError::from("the program ended before it answered");
        asks.send(Ask { line, answer }).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?.map_err(HandlerError::from)
    }

    /// Where the child of a shard takes its records; a child that ended has a successor.
    fn asks(&self, shard: &ShardId) -> mpsc::Sender<Ask> {
        // The map is changed in single steps, so a panic leaves nothing half done.
        let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        while crew.tasks.try_join_next().is_some() {}
        if let Some(asks) = crew.asks.get(shard).filter(|asks| !asks.is_closed()) {
            return asks.clone();
        }
        let (asks, waiting) = mpsc::channel(WAITING);
        crew.asks.insert(shard.clone(), asks.clone());
        crew.tasks.spawn(child::run(
            Arc::clone(&self.command),
            shard.clone(),
            self.timeout,
            waiting,
        ));
        asks
    }

    /// The shard is no longer read: its child finds the end of its input.
    pub(crate) fn let_go(&self, shard: &ShardId) {
        let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        crew.asks.remove(shard);
    }

    /// Lets all children end, unless somebody forces a stop. Those that don't are killed.
    pub(crate) async fn close(&self, forced: bool) {
        let mut tasks = {
            let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
            crew.asks.clear();
            std::mem::take(&mut crew.tasks)
        };
        if !forced {
            let all = async { while tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(FAREWELL, all).await;
        }
        // What is left is killed with its task.
        tasks.shutdown().await;
    }
}
