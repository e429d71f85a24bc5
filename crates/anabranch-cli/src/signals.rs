//! Being asked to stop: the first signal asks, the second one forces.
//!
//! | signal | what it does |
//! |---|---|
//! | SIGTERM, Ctrl-C | the first one asks, the second one forces |
//! | SIGHUP, of a terminal that is closed | asks, and never forces: whoever closes a terminal may send several |
//! | the same within a fifth of a second | is the same word: `timeout` sends it to the command and to its group |
//! | SIGHUP that was ignored when the command began, by `nohup` | nothing |

use crate::failure::CommandFailure;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals within this time are one word. Nobody insists so fast.
const ONE_WORD: Duration = Duration::from_millis(200);

/// Waits for the `count`-th word to stop from now on.
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

/// Waits for the next word to stop that is not a terminal's, while what was begun is brought to its
/// end: a terminal that is closed asks for no more than that.
pub(crate) fn wait_for_forced_stop() -> Result<impl Future<Output = ()> + Send, CommandFailure> {
    let words = SignalStream::listen().map_err(pending_forever)?;
    Ok(async move { words.debounce().await.next(false).await })
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn pending_forever(error: io::Error) -> CommandFailure {
    CommandFailure::usage(format!("signals can't be listened for: {error}"))
}

/// The signals that are words to stop.
struct SignalStream {
    terminate: Signal,
    interrupt: Signal,
    /// None where it was ignored when the command began.
    hang_up: Option<Signal>,
}

impl SignalStream {
    fn listen() -> io::Result<Self> {
        // Asked before anybody listens: whoever does, ends the ignoring.
        let ignored = *HANG_UP_IGNORED.get_or_init(hang_up_is_ignored);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: if ignored { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// Hears nothing for a moment, so that a word that is said twice is one.
    async fn debounce(self) -> Self {
        tokio::time::sleep(ONE_WORD).await;
        // Whoever listens anew hears nothing of what came before. It worked once already.
        Self::listen().unwrap_or(self)
    }

    /// Waits for the next word. A terminal that is closed only counts as the first.
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

/// What was found when it was first asked.
static HANG_UP_IGNORED: OnceLock<bool> = OnceLock::new();

/// Whether SIGHUP is ignored now. Where nothing tells, it is left as it is.
fn hang_up_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").map_or(true, |status| ignores_hang_up(&status))
}

/// Whether a process of this status ignores SIGHUP, the first of the signals. One that does not say
/// counts as one that does: its signals are left as they are.
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
