//! Requests to a child, and replies to its checkpoints until it has completed the request.

use super::Child;
use crate::protocol::{Action, CheckpointReply, FromChild, ToChild};
use crate::session::{ChildCheckpoint, ChildFault, SHUTDOWN, SessionStep};
use anabranch::clock::Clock;
use tokio::sync::mpsc;

/// Time to wait for the last messages of a child that has ended. Its output may stay open, because
/// processes that it started inherit it.
const LAST_WORDS_MS: u64 = 1_000;

/// Writes the checkpoints of a child. Errors carry the name of Java's exception.
pub trait CheckpointWriter {
    /// Writes the checkpoint.
    fn write_checkpoint(
        &mut self,
        wanted: &ChildCheckpoint,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// A reply that the child is still waiting for, across later requests.
#[derive(Debug)]
pub(super) struct PendingReply {
    /// The checkpoint it requested.
    wanted: ChildCheckpoint,
    /// Name of Java's exception, if the checkpoint failed.
    error: Option<String>,
}

/// Rejects every checkpoint, for times at which none is allowed.
#[derive(Clone, Copy, Debug)]
pub struct NoCheckpoints;

impl CheckpointWriter for NoCheckpoints {
    async fn write_checkpoint(&mut self, _: &ChildCheckpoint) -> Result<(), String> {
        Err(crate::session::INVALID_STATE.to_owned())
    }
}

impl Child {
    /// Sends a request and waits until the child has completed it. After a fault the child must be
    /// killed.
    ///
    /// If the future is dropped, the request stays open: [`Child::finish`] waits for its answer.
    pub async fn ask(
        &mut self,
        request: ToChild,
        checkpoints: &mut (impl CheckpointWriter + Send),
    ) -> Result<(), ChildFault> {
        // One request at a time: with two, an answer could not be assigned.
        if self.session.open_action().is_some() {
            self.finish().await?;
        }
        self.send_pending_reply().await?;
        // Unsolicited messages must not count as an answer to this request.
        while let Ok(message) = self.messages.try_recv() {
            self.on_message(message, &mut NoCheckpoints).await?;
        }
        self.session.begin(&request);
        self.send_line(request.line).await?;
        self.answered(checkpoints).await
    }

    /// Waits for the answer to an open request. Rejects its checkpoints. A checkpoint that was
    /// being written is answered first, because the child waits for it.
    pub async fn finish(&mut self) -> Result<(), ChildFault> {
        self.session.forbid_checkpoints();
        self.send_pending_reply().await?;
        self.answered(&mut NoCheckpoints).await
    }

    async fn answered(
        &mut self,
        checkpoints: &mut (impl CheckpointWriter + Send),
    ) -> Result<(), ChildFault> {
        let clock = self.clock.clone();
        let patience_ms = self.settings.silence_ms;
        // Deadline for the last messages of an ended child.
        let mut over_ms = None;
        while let Some(asked) = self.session.open_action() {
            let silent_ms = patience_ms.map(|ms| clock.now_ms().saturating_add(ms));
            let message = tokio::select! {
                biased;
                message = self.messages.recv() => message,
                _ = self.process.wait(), if over_ms.is_none() => {
                    over_ms = Some(clock.now_ms().saturating_add(LAST_WORDS_MS));
                    continue;
                }
                // The child is alive but has closed its input, so it can't receive the request.
                () = wait_unread(self.lines.as_ref()), if over_ms.is_none() => {
                    over_ms = Some(clock.now_ms().saturating_add(LAST_WORDS_MS));
                    continue;
                }
                () = wait_until(&clock, over_ms) => None,
                () = wait_until(&clock, silent_ms) => {
                    let seconds = patience_ms.unwrap_or_default().div_ceil(1_000);
                    return Err(ChildFault::Silent { asked, seconds });
                }
            };
            match message {
                Some(message) => self.on_message(message, checkpoints).await?,
                None => return Err(self.exit_fault(asked).await),
            }
        }
        Ok(())
    }

    async fn on_message(
        &mut self,
        message: FromChild,
        checkpoints: &mut (impl CheckpointWriter + Send),
    ) -> Result<(), ChildFault> {
        match self.session.on_message(message) {
            SessionStep::Done => Ok(()),
            SessionStep::Fault(fault) => Err(fault),
            SessionStep::Unexpected(what) => {
                let (shard, pid) = (&self.shard, self.pid);
                tracing::warn!(%shard, pid, "the child sent {what}: ignored");
                Ok(())
            }
            SessionStep::Refuse { wanted, error } => {
                self.owed = Some(PendingReply { wanted, error: Some(error.to_owned()) });
                self.send_pending_reply().await
            }
            SessionStep::Checkpoint(wanted) => {
                // The write is only cancelled when the lease is being lost.
                let lost = Some(SHUTDOWN.to_owned());
                self.owed = Some(PendingReply { wanted: wanted.clone(), error: lost });
                let error = checkpoints.write_checkpoint(&wanted).await.err();
                self.owed = Some(PendingReply { wanted, error });
                self.send_pending_reply().await
            }
        }
    }

    /// Sends the reply that the child waits for.
    async fn send_pending_reply(&mut self) -> Result<(), ChildFault> {
        let Some(PendingReply { wanted, error }) = &self.owed else { return Ok(()) };
        let reply = CheckpointReply {
            sequence_number: wanted.sequence_number.as_deref(),
            sub_sequence_number: wanted.sub_sequence_number,
            error: error.as_deref(),
        };
        let line = reply.line();
        self.send_line(line).await?;
        self.owed = None;
        Ok(())
    }

    async fn send_line(&mut self, line: Vec<u8>) -> Result<(), ChildFault> {
        let asked = self.session.open_action().unwrap_or(Action::Initialize);
        let sent = match &self.lines {
            None => false,
            Some(lines) => {
                let sending = lines.send(line);
                match self.settings.silence_ms {
                    None => sending.await.is_ok(),
                    // A child that reads nothing counts as silent too.
                    Some(silence_ms) => tokio::select! {
                        biased;
                        sent = sending => sent.is_ok(),
                        () = self.clock.sleep(silence_ms) => {
                            let seconds = silence_ms.div_ceil(1_000);
                            return Err(ChildFault::Silent { asked, seconds });
                        }
                    },
                }
            }
        };
        if sent { Ok(()) } else { Err(self.exit_fault(asked).await) }
    }
}

/// Waits until that moment. Waits forever for `None`.
async fn wait_until(clock: &Clock, moment_ms: Option<u64>) {
    match moment_ms {
        Some(ms) => clock.sleep_until(ms).await,
        None => std::future::pending().await,
    }
}

/// Waits until the reader of the lines is gone.
async fn wait_unread(lines: Option<&mpsc::Sender<Vec<u8>>>) {
    match lines {
        Some(lines) => lines.closed().await,
        None => std::future::pending().await,
    }
}
