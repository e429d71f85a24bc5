//! Streams that are added and removed while a consumer runs.

use crate::lease::coordinator::ReadyStream;
use crate::lease::{Coordinator, CoordinatorStartError, LeaseStore, StreamSettings};
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// Requests that wait.
const WAITING: usize = 16;

/// Adds streams to a running consumer and removes them. Clones speak to the same one.
///
/// Do the same on all workers of the application: what one of them doesn't read, the others level
/// out late.
#[derive(Clone, Debug)]
pub struct StreamControl {
    requests: mpsc::Sender<ControlCommand>,
}

/// Why a stream was not added or removed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The consumer does not run, or stopped before it was done.
    #[error("the consumer has stopped, so its streams can't be changed")]
    Stopped,
    /// The stream can't be read.
    #[error(transparent)]
    Start(#[from] CoordinatorStartError),
    /// Somebody removed it meanwhile.
    #[error("stream {stream} was removed before it could be read")]
    Removed {
        /// Its name.
        stream: StreamName,
    },
}

/// Tells whoever asked for a stream what came of it.
type AddReply = oneshot::Sender<Result<(), ControlError>>;

/// What a running consumer is asked for.
#[derive(Debug)]
pub(super) enum ControlCommand {
    Add { stream: StreamSettings, reply: AddReply },
    Remove { stream: StreamName, reply: oneshot::Sender<Vec<LeaseKey>> },
}

impl StreamControl {
    /// A control, and what the consumer hears.
    pub(super) fn new() -> (Self, mpsc::Receiver<ControlCommand>) {
        let (requests, heard) = mpsc::channel(WAITING);
        (Self { requests }, heard)
    }

    /// Reads one more stream, from `start` if the application has never read it. Waits until the
    /// stream can be used and its first rows are made, or until it is removed.
    pub async fn add(
        &self,
        stream: impl Into<StreamName>,
        start: StartPosition,
    ) -> Result<(), ControlError> {
        let stream = StreamSettings { name: stream.into(), start };
        self.send_request(|reply| ControlCommand::Add { stream, reply }).await?
    }

    /// Reads a stream no longer: its shards are drained, and given back for others. Returns those
    /// that could not be in the consumer's grace period. Rows and checkpoints stay.
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

/// The streams that are being made ready.
#[derive(Default)]
struct PendingStreams {
    /// The attempts.
    tasks: JoinSet<Result<ReadyStream, CoordinatorStartError>>,
    /// Who asked for which, and the attempt.
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

    /// Adds no more a stream that is not ready yet.
    fn give_up(&mut self, stream: &StreamName) {
        if let Some((task, reply)) = self.asked.remove(stream) {
            task.abort();
            let _ = reply.send(Err(ControlError::Removed { stream: stream.clone() }));
        }
    }

    /// Waits until one is ready, or can't be. `None` if nobody waits for it any more.
    async fn next(&mut self) -> Option<(Result<ReadyStream, CoordinatorStartError>, AddReply)> {
        let ended = match self.tasks.join_next_with_id().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        };
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let is_it = |(_, (task, _)): &(&StreamName, &(AbortHandle, AddReply))| task.id() == id;
        let name = self.asked.iter().find(is_it)?.0.clone();
        let (_, reply) = self.asked.remove(&name)?;
        // One that panicked leaves without an answer, which is one too.
        Some((ended.ok()?.1, reply))
    }
}

/// Does what is asked for. A stream that is added may have to be waited for, and keeps nobody
/// waiting who asks for something else. Never ends.
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
                // Whoever asked may have gone: what was asked for is done all the same.
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

/// The next request. Waits for ever once none can come.
async fn next_request(requests: &mut Option<mpsc::Receiver<ControlCommand>>) -> ControlCommand {
    while let Some(heard) = requests {
        match heard.recv().await {
            Some(request) => return request,
            None => *requests = None,
        }
    }
    std::future::pending().await
}
