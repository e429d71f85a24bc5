//! Asking a child, and answering its checkpoints until it has done what it was asked.

use super::Child;
use crate::protocol::{Action, CheckpointReply, FromChild, Request};
use crate::session::{ChildFault, SHUTDOWN, Step, Wanted};
use anabranch::clock::Clock;
use tokio::sync::mpsc;

/// How long the last words of a child that has ended are waited for. Its output may stay open: those
/// whom it started hold it too.
const LAST_WORDS_MS: u64 = 1_000;

/// Who writes the checkpoints of a child down. The error is the name of Java's exception.
pub trait WriteDown {
    /// Writes it down.
    fn write_down(&mut self, wanted: &Wanted) -> impl Future<Output = Result<(), String>> + Send;
}

/// An answer that a child waits for, whoever asked it something meanwhile.
#[derive(Debug)]
pub(super) struct Owed {
    /// What it wanted.
    wanted: Wanted,
    /// Java's name for why not.
    error: Option<String>,
}

/// Where no checkpoint is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Nowhere;

impl WriteDown for Nowhere {
    async fn write_down(&mut self, _: &Wanted) -> Result<(), String> {
        Err(crate::session::INVALID_STATE.to_owned())
    }
}

impl Child {
    /// Asks, and waits until it is done. After a fault the child has to go.
    ///
    /// Dropped on the way, the question stays open: [`Child::finish`] waits for its answer.
    pub async fn ask(
        &mut self,
        request: Request,
        checkpoints: &mut (impl WriteDown + Send),
    ) -> Result<(), ChildFault> {
        // One question at a time: of two, nobody could tell which one was answered.
        if self.session.open().is_some() {
            self.finish().await?;
        }
        self.pay().await?;
        // What it said unasked must not count as the answer to what it is asked now.
        while let Ok(message) = self.messages.try_recv() {
            self.hear(message, &mut Nowhere).await?;
        }
        self.session.ask(&request);
        self.say(request.line).await?;
        self.answered(checkpoints).await
    }

    /// Waits for the answer to a question that was left open. Its checkpoints are refused, and one
    /// that was being written is answered first: the child waits for it.
    pub async fn finish(&mut self) -> Result<(), ChildFault> {
        self.session.forbid_checkpoints();
        self.pay().await?;
        self.answered(&mut Nowhere).await
    }

    async fn answered(
        &mut self,
        checkpoints: &mut (impl WriteDown + Send),
    ) -> Result<(), ChildFault> {
        let clock = self.clock.clone();
        let patience_ms = self.settings.silence_ms;
        // Until when the last words of one that has ended are waited for.
        let mut over_ms = None;
        while let Some(asked) = self.session.open() {
            let silent_ms = patience_ms.map(|ms| clock.now_ms().saturating_add(ms));
            let message = tokio::select! {
                biased;
                message = self.messages.recv() => message,
                _ = self.process.wait(), if over_ms.is_none() => {
                    over_ms = Some(clock.now_ms().saturating_add(LAST_WORDS_MS));
                    continue;
                }
                // It lives, but closed its input: it will never hear what it was asked.
                () = deaf(self.lines.as_ref()), if over_ms.is_none() => {
                    over_ms = Some(clock.now_ms().saturating_add(LAST_WORDS_MS));
                    continue;
                }
                () = until(&clock, over_ms) => None,
                () = until(&clock, silent_ms) => {
                    let seconds = patience_ms.unwrap_or_default().div_ceil(1_000);
                    return Err(ChildFault::Silent { asked, seconds });
                }
            };
            match message {
                Some(message) => self.hear(message, checkpoints).await?,
                None => return Err(self.ended(asked).await),
            }
        }
        Ok(())
    }

    async fn hear(
        &mut self,
        message: FromChild,
        checkpoints: &mut (impl WriteDown + Send),
    ) -> Result<(), ChildFault> {
        match self.session.hear(message) {
            Step::Done => Ok(()),
            Step::Fault(fault) => Err(fault),
            Step::Odd(what) => {
                let (shard, pid) = (&self.shard, self.pid);
                tracing::warn!(%shard, pid, "the child sent {what}: ignored");
                Ok(())
            }
            Step::Refuse { wanted, error } => {
                self.owed = Some(Owed { wanted, error: Some(error.to_owned()) });
                self.pay().await
            }
            Step::Checkpoint(wanted) => {
                // Whoever gives up the writing does so because the lease goes.
                let lost = Some(SHUTDOWN.to_owned());
                self.owed = Some(Owed { wanted: wanted.clone(), error: lost });
                let error = checkpoints.write_down(&wanted).await.err();
                self.owed = Some(Owed { wanted, error });
                self.pay().await
            }
        }
    }

    /// Gives the child the answer that it waits for.
    async fn pay(&mut self) -> Result<(), ChildFault> {
        let Some(Owed { wanted, error }) = &self.owed else { return Ok(()) };
        let reply = CheckpointReply {
            sequence_number: wanted.sequence_number.as_deref(),
            sub_sequence_number: wanted.sub_sequence_number,
            error: error.as_deref(),
        };
        let line = reply.line();
        self.say(line).await?;
        self.owed = None;
        Ok(())
    }

    async fn say(&mut self, line: Vec<u8>) -> Result<(), ChildFault> {
        let asked = self.session.open().unwrap_or(Action::Initialize);
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
        if sent { Ok(()) } else { Err(self.ended(asked).await) }
    }
}

/// Waits until that moment, or for ever.
async fn until(clock: &Clock, moment_ms: Option<u64>) {
    match moment_ms {
        Some(ms) => clock.sleep_until(ms).await,
        None => std::future::pending().await,
    }
}

/// Waits until nobody reads the lines any more.
async fn deaf(lines: Option<&mpsc::Sender<Vec<u8>>>) {
    match lines {
        Some(lines) => lines.closed().await,
        None => std::future::pending().await,
    }
}
