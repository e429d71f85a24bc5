//! Stopping: the first signal asks, the second one forces.

use std::io;

/// Waits for the `count`-th signal to stop, SIGTERM or Ctrl-C, from now on.
#[cfg(unix)]
pub(super) fn signals(count: usize) -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
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

/// Waits for the `count`-th Ctrl-C from now on.
#[cfg(not(unix))]
pub(super) fn signals(count: usize) -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async move {
        for _ in 0..count {
            // Without a way to be told, there is nothing to stop for.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    })
}
