//! Stop signals: the first one requests a stop, the second one forces it.
//!
//! | signal | effect |
//! |---|---|
//! | SIGTERM, Ctrl-C | the first requests a stop, the second forces it |
//! | SIGHUP, when a terminal closes | requests a stop, never forces it: it may come several times |
//! | repeated within 200 ms | counts once: `timeout` signals the command and its process group |
//! | SIGHUP that was ignored at startup, by `nohup` | none |

use crate::failure::CommandFailure;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time within which signals count as one. No user repeats a signal that fast.
const ONE_WORD: Duration = Duration::from_millis(200);

/// Waits for the `count`-th stop signal from now on.
pub(crate) fn wait_for_signal(
    count: usize,
) -> Result<impl Future<Output = ()> + Send, CommandFailure> {
    let mut words = SignalStream::listen().map_err(pending_forever)?;
    Ok(async move {
        for heard in 0..count {
            if heard > 0 {
                words = words.debounce().await;
            }
            words.next(heard == 0).await;
        }
    })
}

/// Waits for the next stop signal other than SIGHUP while pending work completes. A closed terminal
/// does not cut that short.
pub(crate) fn wait_for_forced_stop() -> Result<impl Future<Output = ()> + Send, CommandFailure> {
    let words = SignalStream::listen().map_err(pending_forever)?;
    Ok(async move { words.debounce().await.next(false).await })
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn pending_forever(error: io::Error) -> CommandFailure {
    CommandFailure::usage(format!("signal handlers can't be installed: {error}"))
}

/// The stop signals.
struct SignalStream {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if SIGHUP was ignored at startup.
    hang_up: Option<Signal>,
}

impl SignalStream {
    fn listen() -> io::Result<Self> {
        // This must be read before listening, which ends the ignoring.
        let ignored = *HANG_UP_IGNORED.get_or_init(hang_up_is_ignored);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: if ignored { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// Ignores signals for a moment, so that a signal sent twice counts once.
    async fn debounce(self) -> Self {
        tokio::time::sleep(ONE_WORD).await;
        // A new listener misses earlier signals. Listening has succeeded before.
        Self::listen().unwrap_or(self)
    }

    /// Waits for the next signal. SIGHUP only counts as the first.
    async fn next(&mut self, first: bool) {
        let Self { terminate, interrupt, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(hang_up) if first => drop(hang_up.recv().await),
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = hung_up => {}
        }
    }
}

/// Result of the first check.
static HANG_UP_IGNORED: OnceLock<bool> = OnceLock::new();

/// Returns true if SIGHUP is ignored. If that is unknown, it is left ignored.
fn hang_up_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").map_or(true, |status| ignores_hang_up(&status))
}

/// Returns true if a process with this status ignores SIGHUP, signal number 1. A status without
/// that information counts as true, so that its signals are left alone.
fn ignores_hang_up(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hang_up_is_found_in_the_status_of_the_process() {
        for (status, expected) in [
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n", false),
            ("SigIgn:\t0000000000000001\nSigCgt:\t0000000000000000\n", true),
            ("SigIgn:\t0000000000001001\n", true),
            ("SigIgn:\tnonsense\n", true),
            ("Name:\tanabranch\n", true),
        ] {
            assert_eq!(ignores_hang_up(status), expected, "{status:?}");
        }
    }
}
