//! How a child ends: by itself when its input is closed, or killed; reaped in any case.

use super::{Child, NoCheckpoints};
use crate::process_group;
use crate::protocol::{Action, ShutdownMessages, ToChild};
use crate::session::ChildFault;
use std::process::ExitStatus;

/// How long the exit of a child is waited for that has closed its output.
const REAP_MS: u64 = 1_000;

impl Child {
    /// Closes its input and waits until it ends; kills it if that takes too long.
    pub async fn close(mut self) {
        self.lines = None;
        let (exit_ms, clock) = (self.settings.exit_ms, self.clock.clone());
        let ended = async {
            loop {
                // What it still says is read, so that it can't hang on a full pipe.
                tokio::select! {
                    biased;
                    _ = self.process.wait() => return,
                    Some(_) = self.messages.recv() => {}
                }
            }
        };
        tokio::select! {
            biased;
            () = ended => {
                self.ended_in_order = true;
                return;
            }
            () = clock.sleep(exit_ms) => {}
        }
        let (shard, pid) = (self.shard.clone(), self.pid);
        tracing::warn!(%shard, pid, "the child did not end within {exit_ms} ms: killed");
        self.kill().await;
    }

    /// Parts with it: it ends what it was asked when the lease went, and is told that it is lost.
    /// One that is at fault, or takes too long, is killed; else it has only to end.
    pub(crate) async fn release(mut self, messages: ShutdownMessages) -> Option<Self> {
        let Err(fault) = self.notify_lease_lost(messages).await else { return Some(self) };
        let (shard, pid) = (&*self.shard, self.pid);
        tracing::warn!(shard, pid, "the child was not told that its lease is lost: {fault}");
        self.kill().await;
        None
    }

    /// It has as long to end what it is at and to hear of the loss as it has for its end.
    pub(super) async fn notify_lease_lost(
        &mut self,
        messages: ShutdownMessages,
    ) -> Result<(), ChildFault> {
        let (ms, clock) = (self.settings.exit_ms, self.clock.clone());
        let told = async {
            self.finish().await?;
            self.ask(ToChild::lease_lost(messages), &mut NoCheckpoints).await
        };
        tokio::select! {
            biased;
            told = told => return told,
            () = clock.sleep(ms) => {}
        }
        Err(ChildFault::Late { asked: self.session.open_action().unwrap_or(Action::LeaseLost), ms })
    }

    /// Kills it and all that it started, and waits until it is gone.
    pub async fn kill(mut self) {
        // The group at once, and again when it is dropped: what was started in between is in it too.
        process_group::kill_group(self.pid);
        // It can fail only where the process has ended already.
        let _ = self.process.kill().await;
    }

    /// The fault of a child whose output has ended.
    pub(super) async fn exit_fault(&mut self, asked: Action) -> ChildFault {
        let clock = self.clock.clone();
        let status = tokio::select! {
            biased;
            status = self.process.wait() => status.ok(),
            () = clock.sleep(REAP_MS) => None,
        };
        ChildFault::Ended { asked, status: status.map(|status: ExitStatus| status.to_string()) }
    }
}
