//! Changing one lease after another: a signal ends that between two of them, never inside of one.

use crate::failure::Failure;
use std::pin::Pin;

/// Goes from change to change.
pub(super) struct Halt {
    /// Resolves when somebody asks to stop.
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// What to do when not all changes were made.
    way_back: String,
}

impl Halt {
    /// Listens for signals from now on. `snapshot` is what brings the leases back.
    pub(super) fn new(application: &str, snapshot: &std::path::Path) -> Result<Self, Failure> {
        let file = snapshot.display();
        let way_back = format!(
            "before workers start, bring the leases back: `anabranch leases {application} restore \
             {file} --yes`"
        );
        Ok(Self { stop: Box::pin(crate::stop::signals(1)?), way_back })
    }

    /// Makes a change to its end, unless somebody has asked to stop.
    pub(super) async fn step(
        &mut self,
        change: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let stopped = tokio::select! {
            biased;
            () = &mut self.stop => true,
            () = std::future::ready(()) => false,
        };
        let done = if stopped {
            Err(Failure::result("stopped before all leases were changed"))
        } else {
            change.await
        };
        done.map_err(|failure| failure.after(&self.way_back))
    }
}
