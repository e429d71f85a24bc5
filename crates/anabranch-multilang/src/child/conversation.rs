//! Asking a child, and answering its checkpoints until it has done what it was asked.

use super::Child;
use crate::protocol::{Action, CheckpointReply, FromChild, ToChild};
use crate::session::{ChildCheckpoint, ChildFault, SHUTDOWN, SessionStep};
use anabranch::clock::Clock;
use tokio::sync::mpsc;

/// How long the last words of a child that has ended are waited for. Its output may stay open: those
/// whom it started hold it too.
const LAST_WORDS_MS: u64 = 1_000;

/// Who writes the checkpoints of a child down. The error is the name of Java's exception.
pub trait CheckpointWriter {
    /// Writes it down.
    fn write_checkpoint(
        &mut self,
        wanted: &ChildCheckpoint,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// An answer that a child waits for, whoever asked it something meanwhile.
#[derive(Debug)]
pub(super) struct PendingReply {
    /// What it wanted.
    wanted: ChildCheckpoint,
    /// Java's name for why not.
    error: Option<String>,
}

/// Where no checkpoint is allowed.
#[derive(Clone, Copy, Debug)]
pub struct NoCheckpoints;

impl CheckpointWriter for NoCheckpoints {
    async fn write_checkpoint(&mut self, _: &ChildCheckpoint) -> Result<(), String> {
        Err(crate::session::INVALID_STATE.to_owned())
    }
}

impl Child {
    /// Asks, and waits until it is done. After a fault the child has to go.
    ///
    /// Dropped on the way, the question stays open: [`Child::finish`] waits for its answer.
    pub async fn ask(
        &mut self,
        request: ToChild,
        checkpoints: &mut (impl CheckpointWriter + Send),
    ) -> Result<(), ChildFault> {
        // One question at a time: of two, nobody could tell which one was answered.
        if self.session.open_action().is_some() {
            self.finish().await?;
        }
        self.send_pending_reply().await?;
        // What it said unasked must not count as the answer to what it is asked now.
        while let Ok(message) = self.messages.try_recv() {
            self.on_message(message, &mut NoCheckpoints).await?;
        }
        self.session.begin(&request);
        self.send_line(request.line).await?;
        self.answered(checkpoints).await
    }

    /// Waits for the answer to a question that was left open. Its checkpoints are refused, and one
    /// that was being written is answered first: the child waits for it.
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
        // Until when the last words of one that has ended are waited for.
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
                // It lives, but closed its input: it will never hear what it was asked.
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
                // Whoever gives up the writing does so because the lease goes.
                let lost = Some(SHUTDOWN.to_owned());
                self.owed = Some(PendingReply { wanted: wanted.clone(), error: lost });
                let error = checkpoints.write_checkpoint(&wanted).await.err();
                self.owed = Some(PendingReply { wanted, error });
                self.send_pending_reply().await
            }
        }
    }

    /// Gives the child the answer that it waits for.
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
                    // A child that reads nothing is as silent as one that says nothing.
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

/// Waits until that moment, or for ever.
async fn wait_until(clock: &Clock, moment_ms: Option<u64>) {
    match moment_ms {
        Some(ms) => clock.sleep_until(ms).await,
        None => std::future::pending().await,
    }
}

/// Waits until nobody reads the lines any more.
async fn wait_unread(lines: Option<&mpsc::Sender<Vec<u8>>>) {
    match lines {
        Some(lines) => lines.closed().await,
        None => std::future::pending().await,
    }
}
