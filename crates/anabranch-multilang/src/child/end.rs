//! End of a child: it exits when its input is closed or is killed, and is always reaped.

use super::{Child, NoCheckpoints};
use crate::process_group;
use crate::protocol::{Action, ShutdownMessages, ToChild};
use crate::session::ChildFault;
use std::process::ExitStatus;

/// Time to wait for the exit of a child that has closed its output.
const REAP_MS: u64 = 1_000;

impl Child {
    /// Closes the child's input and waits until it exits. Kills it after `exit_ms`.
    pub async fn close(mut self) {
        self.lines = None;
        let (exit_ms, clock) = (self.settings.exit_ms, self.clock.clone());
        let ended = async {
            loop {
                // Keep reading its output, so that it can't block on a full pipe.
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
        tracing::warn!(%shard, pid, "the child did not exit within {exit_ms} ms: killed");
        self.kill().await;
    }

    /// Lets the child finish its open request and notifies it of the lost lease. Returns the child
    /// if it only has to exit. Kills it after a fault or a timeout.
    pub(crate) async fn release(mut self, messages: ShutdownMessages) -> Option<Self> {
        let Err(fault) = self.notify_lease_lost(messages).await else { return Some(self) };
        let (shard, pid) = (&*self.shard, self.pid);
        tracing::warn!(shard, pid, "the child could not be notified of its lost lease: {fault}");
        self.kill().await;
        None
    }

    /// Completes the open request and the notification together within `exit_ms`.
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

    /// Kills the child and all processes it started, and waits until it has exited.
    pub async fn kill(mut self) {
        // Kill the group now, and again on drop: processes started in between belong to it too.
        process_group::kill_group(self.pid);
        // This fails only if the process has already ended.
        let _ = self.process.kill().await;
    }

    /// Returns the fault of a child whose output has ended.
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
