//! The tasks of one connection: dropped, and with them the socket, when the connection is.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::task::JoinSet;

/// Owns the tasks of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionTasks(Arc<Mutex<JoinSet<()>>>);

/// Spawns tasks for their owner, while that lives.
///
/// Hyper keeps a copy in the tasks themselves, so it must not own them.
#[derive(Debug, Clone)]
pub(super) struct TaskSpawner(Weak<Mutex<JoinSet<()>>>);

impl ConnectionTasks {
    pub(super) fn spawner(&self) -> TaskSpawner {
        TaskSpawner(Arc::downgrade(&self.0))
    }
}

impl TaskSpawner {
    /// Ends all tasks, and with them the connection.
    pub(super) fn abort_all(&self) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        }
    }
}

impl<F> hyper::rt::Executor<F> for TaskSpawner
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let Some(tasks) = self.0.upgrade() else { return };
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // A task that has ended stays in the set until it is taken out.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { drop(task.await) });
    }
}
