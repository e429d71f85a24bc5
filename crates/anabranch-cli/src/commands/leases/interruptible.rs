//! Interruptible sequence of changes: one signal stops between two changes, a second one at once.

use crate::failure::CommandFailure;
use std::pin::Pin;

/// Runs one change after another.
pub(super) struct Interruptible {
    /// Resolves at the first stop signal.
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Resolves at the second stop signal.
    force: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Advice for the case that not all changes were made.
    way_back: String,
}

impl Interruptible {
    /// Starts listening for signals. `way_back` is the advice for the case that not all changes
    /// were made.
    pub(super) fn new(way_back: String) -> Result<Self, CommandFailure> {
        let (stop, force) =
            (crate::signals::wait_for_signal(1)?, crate::signals::wait_for_signal(2)?);
        Ok(Self { stop: Box::pin(stop), force: Box::pin(force), way_back })
    }

    /// Completes a change, unless a stop was requested.
    pub(super) async fn step(
        &mut self,
        change: impl Future<Output = Result<(), CommandFailure>>,
    ) -> Result<(), CommandFailure> {
        let stopped = tokio::select! {
            biased;
            () = &mut self.stop => true,
            () = std::future::ready(()) => false,
        };
        let done = if stopped {
            Err(CommandFailure::result("stopped before all leases were changed"))
        } else {
            tokio::select! {
                biased;
                () = &mut self.force => {
                    Err(CommandFailure::result("stopped at once by a second signal, in the middle \
                                                of a change"))
                }
                done = change => done,
            }
        };
        done.map_err(|failure| failure.after(&self.way_back))
    }
}
