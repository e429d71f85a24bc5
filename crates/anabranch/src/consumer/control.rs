//! Streams that are added and removed while a consumer runs.

use crate::lease::{Coordinator, LeaseStore, StartError, StreamSettings};
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::StartPosition;
use tokio::sync::{mpsc, oneshot};

/// Requests that wait.
const WAITING: usize = 16;

/// Adds streams to a running consumer and removes them. Clones speak to the same one.
///
/// Do the same on all workers of the application: what one of them doesn't read, the others level
/// out late.
#[derive(Clone, Debug)]
pub struct StreamControl {
    requests: mpsc::Sender<Request>,
}

/// Why a stream was not added or removed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The consumer does not run, or stopped before it was done.
    #[error("the consumer has stopped, so its streams can't be changed")]
    Stopped,
    /// The stream can't be read.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// What a running consumer is asked for.
#[derive(Debug)]
pub(super) enum Request {
    Add { stream: StreamSettings, reply: oneshot::Sender<Result<(), StartError>> },
    Remove { stream: StreamName, reply: oneshot::Sender<Vec<LeaseKey>> },
}

impl StreamControl {
    /// A control, and what the consumer hears.
    pub(super) fn new() -> (Self, mpsc::Receiver<Request>) {
        let (requests, heard) = mpsc::channel(WAITING);
        (Self { requests }, heard)
    }

    /// Reads one more stream, from `start` if the application has never read it. Waits until the
    /// stream can be used and its first rows are made.
    pub async fn add(
        &self,
        stream: impl Into<StreamName>,
        start: StartPosition,
    ) -> Result<(), ControlError> {
        let stream = StreamSettings { name: stream.into(), start };
        let added = self.ask(|reply| Request::Add { stream, reply }).await?;
        Ok(added?)
    }

    /// Reads a stream no longer: its shards are drained, and given back for others. Returns those
    /// that could not be in the consumer's grace period. Rows and checkpoints stay.
    pub async fn remove(
        &self,
        stream: impl Into<StreamName>,
    ) -> Result<Vec<LeaseKey>, ControlError> {
        let stream = stream.into();
        self.ask(|reply| Request::Remove { stream, reply }).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| ControlError::Stopped)?;
        answer.await.map_err(|_| ControlError::Stopped)
    }
}

/// Does what is asked for, one request after another. Never ends.
pub(super) async fn serve<S: LeaseStore, A: StreamApi>(
    coordinator: &Coordinator<S, A>,
    requests: &mut Option<mpsc::Receiver<Request>>,
    grace_ms: u64,
) {
    while let Some(heard) = requests {
        match heard.recv().await {
            // Whoever asked may have gone: what was asked for is done all the same.
            Some(Request::Add { stream, reply }) => {
                let _ = reply.send(coordinator.add_stream(stream).await);
            }
            Some(Request::Remove { stream, reply }) => {
                let _ = reply.send(coordinator.remove_stream(&stream, grace_ms).await);
            }
            None => *requests = None,
        }
    }
    std::future::pending::<()>().await;
}
