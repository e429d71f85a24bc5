//! Background tasks of one connection. They are dropped with the connection, and the socket with
//! them.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::task::JoinSet;

/// Owns the tasks of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionTasks(Arc<Mutex<JoinSet<()>>>);

/// Spawns tasks on the [`ConnectionTasks`], while it exists.
///
/// Hyper keeps a clone inside the tasks themselves, so it must not own them.
#[derive(Debug, Clone)]
pub(super) struct TaskSpawner(Weak<Mutex<JoinSet<()>>>);

impl ConnectionTasks {
    pub(super) fn spawner(&self) -> TaskSpawner {
        TaskSpawner(Arc::downgrade(&self.0))
    }
}

impl TaskSpawner {
    /// Aborts all tasks, which closes the connection.
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
        // A finished task stays in the set until it is joined.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { drop(task.await) });
    }
}
