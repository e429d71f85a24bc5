//! Being asked to stop: the first signal asks, the second one forces.

use crate::failure::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for the `count`-th SIGTERM or Ctrl-C from now on.
pub(crate) fn signals(count: usize) -> Result<impl Future<Output = ()> + Send, Failure> {
    let unheard = |error| Failure::usage(format!("signals can't be listened for: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(unheard)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
    Ok(async move {
        for _ in 0..count {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    })
}
