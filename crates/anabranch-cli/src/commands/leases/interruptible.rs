//! Changing one lease after another: a signal ends that between two of them, a second one at once.

use crate::failure::CommandFailure;
use std::pin::Pin;

/// Goes from change to change.
pub(super) struct Interruptible {
    /// Resolves when somebody asks to stop.
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Resolves when somebody asks again.
    force: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// What to do when not all changes were made.
    way_back: String,
}

impl Interruptible {
    /// Listens for signals from now on. `way_back` says what to do when not all changes were made.
    pub(super) fn new(way_back: String) -> Result<Self, CommandFailure> {
        let (stop, force) =
            (crate::signals::wait_for_signal(1)?, crate::signals::wait_for_signal(2)?);
        Ok(Self { stop: Box::pin(stop), force: Box::pin(force), way_back })
    }

    /// Makes a change to its end, unless somebody has asked to stop.
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
                    Err(CommandFailure::result("stopped at once by a second signal, inside of a change"))
                }
                done = change => done,
            }
        };
        done.map_err(|failure| failure.after(&self.way_back))
    }
}
