//! `StreamControl`, which adds and removes streams while a consumer runs.

use crate::lease::coordinator::ReadyStream;
use crate::lease::{Coordinator, CoordinatorStartError, LeaseStore, StreamSettings};
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// Maximum number of queued commands.
const WAITING: usize = 16;

/// Handle that adds and removes streams of a running consumer. Clones control the same consumer.
///
/// Make the same change on all workers of the application. Leases of a stream that one worker does
/// not read are balanced late by the others.
#[derive(Clone, Debug)]
pub struct StreamControl {
    requests: mpsc::Sender<ControlCommand>,
}

/// Error of adding or removing a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The consumer is not running, or stopped before the change was complete.
    #[error("the consumer has stopped, so no stream can be added or removed")]
    Stopped,
    /// The stream can't be read.
    #[error(transparent)]
    Start(#[from] CoordinatorStartError),
    /// The stream was removed by another call before it could be read.
    #[error("stream {stream} was removed before reading it began")]
    Removed {
        /// Name of the stream.
        stream: StreamName,
    },
}

/// Channel for the result of a [`ControlCommand::Add`].
type AddReply = oneshot::Sender<Result<(), ControlError>>;

/// Command to a running consumer.
#[derive(Debug)]
pub(super) enum ControlCommand {
    Add { stream: StreamSettings, reply: AddReply },
    Remove { stream: StreamName, reply: oneshot::Sender<Vec<LeaseKey>> },
}

impl StreamControl {
    /// Creates a handle, and the consumer's receiver of its commands.
    pub(super) fn new() -> (Self, mpsc::Receiver<ControlCommand>) {
        let (requests, heard) = mpsc::channel(WAITING);
        (Self { requests }, heard)
    }

    /// Reads one more stream, from `start` if the application has never read it. Waits until the
    /// stream is usable and its first lease rows exist, or until it is removed.
    pub async fn add(
        &self,
        stream: impl Into<StreamName>,
        start: StartPosition,
    ) -> Result<(), ControlError> {
        let stream = StreamSettings { name: stream.into(), start };
        self.send_request(|reply| ControlCommand::Add { stream, reply }).await?
    }

    /// Stops reading a stream: drains its shards and releases their leases. Returns the leases that
    /// were not released within the consumer's grace period. Lease rows and checkpoints remain.
    pub async fn remove(
        &self,
        stream: impl Into<StreamName>,
    ) -> Result<Vec<LeaseKey>, ControlError> {
        let stream = stream.into();
        self.send_request(|reply| ControlCommand::Remove { stream, reply }).await
    }

    async fn send_request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> ControlCommand,
    ) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| ControlError::Stopped)?;
        answer.await.map_err(|_| ControlError::Stopped)
    }
}

/// Streams that are being opened.
#[derive(Default)]
struct PendingStreams {
    /// One task per stream.
    tasks: JoinSet<Result<ReadyStream, CoordinatorStartError>>,
    /// Task and reply channel of each stream.
    asked: BTreeMap<StreamName, (AbortHandle, AddReply)>,
}

impl PendingStreams {
    fn begin<S: LeaseStore, A: StreamApi>(
        &mut self,
        coordinator: &Coordinator<S, A>,
        stream: StreamSettings,
        reply: AddReply,
    ) {
        let name = stream.name.clone();
        if self.asked.contains_key(&name) {
            let _ = reply.send(Err(CoordinatorStartError::DuplicateStream { stream: name }.into()));
            return;
        }
        let task = self.tasks.spawn(coordinator.open_stream(stream));
        self.asked.insert(name, (task, reply));
    }

    /// Cancels the opening of a stream.
    fn give_up(&mut self, stream: &StreamName) {
        if let Some((task, reply)) = self.asked.remove(stream) {
            task.abort();
            let _ = reply.send(Err(ControlError::Removed { stream: stream.clone() }));
        }
    }

    /// Waits for the next stream that is open or failed to open. Returns `None` if its request was
    /// cancelled or its task panicked.
    async fn next(&mut self) -> Option<(Result<ReadyStream, CoordinatorStartError>, AddReply)> {
        let ended = match self.tasks.join_next_with_id().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        };
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let is_it = |(_, (task, _)): &(&StreamName, &(AbortHandle, AddReply))| task.id() == id;
        let name = self.asked.iter().find(is_it)?.0.clone();
        let (_, reply) = self.asked.remove(&name)?;
        // If the task panicked, the reply channel is dropped, and the caller gets an error.
        Some((ended.ok()?.1, reply))
    }
}

/// Executes commands. A stream that takes time to open does not delay other commands, except that a
/// removal waits for its drain. Never returns.
pub(super) async fn serve<S: LeaseStore, A: StreamApi>(
    coordinator: &Coordinator<S, A>,
    requests: &mut Option<mpsc::Receiver<ControlCommand>>,
    grace_ms: u64,
) {
    let mut adding = PendingStreams::default();
    loop {
        tokio::select! {
            biased;
            opened = adding.next() => if let Some((opened, reply)) = opened {
                let added = match opened {
                    Ok(opened) => coordinator.read_stream(opened),
                    Err(error) => Err(error),
                };
                // The stream is read even if the caller no longer waits.
                let _ = reply.send(added.map_err(Into::into));
            },
            request = next_request(requests) => match request {
                ControlCommand::Add { stream, reply } => adding.begin(coordinator, stream, reply),
                ControlCommand::Remove { stream, reply } => {
                    adding.give_up(&stream);
                    let _ = reply.send(coordinator.remove_stream(&stream, grace_ms).await);
                }
            },
        }
    }
}

/// Returns the next command. Pends forever once all handles are dropped.
async fn next_request(requests: &mut Option<mpsc::Receiver<ControlCommand>>) -> ControlCommand {
    while let Some(heard) = requests {
        match heard.recv().await {
            Some(request) => return request,
            None => *requests = None,
        }
    }
    std::future::pending().await
}
