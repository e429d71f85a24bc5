//! What a child prints: messages go up, everything else goes into the log, with shard and pid.

use super::lines::{Cut, LineCutter};
use crate::protocol::{FromChild, Heard, hear};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;

/// How much of a printed line is logged.
const LOGGED_CHARS: usize = 4_000;

/// Whose output it is.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The shard.
    pub(super) shard: Arc<str>,
    /// The process.
    pub(super) pid: u32,
}

/// Reads standard output until its end. Waits while nobody takes the messages, so that a child
/// that floods its output has to wait too.
pub(super) async fn listen(
    mut pipe: impl AsyncRead + Unpin,
    source: Source,
    messages: mpsc::Sender<FromChild>,
) {
    let (mut cutter, mut buffer) = (LineCutter::default(), vec![0; 16 * 1024]);
    loop {
        let mut heard = Vec::new();
        let ended = match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => {
                heard.extend(cutter.rest());
                true
            }
            Ok(count) => {
                cutter.push(&buffer[..count], |line| heard.push(line));
                false
            }
        };
        for line in heard {
            // What was cut is no message, however it begins.
            match if line.cut > 0 { Heard::Print } else { hear(&line.text) } {
                Heard::Blank => {}
                Heard::Print => source.log("stdout", &line),
                Heard::Message(message) => {
                    if messages.send(message).await.is_err() {
                        return;
                    }
                }
            }
        }
        if ended {
            return;
        }
    }
}

/// Logs standard error until its end.
pub(super) async fn log_errors(mut pipe: impl AsyncRead + Unpin, source: Source) {
    let (mut cutter, mut buffer) = (LineCutter::default(), vec![0; 16 * 1024]);
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        cutter.push(&buffer[..count], |line| source.log("stderr", &line));
    }
    if let Some(line) = cutter.rest() {
        source.log("stderr", &line);
    }
}

impl Source {
    fn log(&self, from: &'static str, line: &Cut) {
        let Self { shard, pid } = self;
        if line.text.trim().is_empty() {
            return;
        }
        let shown: String = line.text.chars().take(LOGGED_CHARS).collect();
        let cut = line.text.len() - shown.len() + line.cut;
        let more = if cut > 0 { format!(" … and {cut} bytes more") } else { String::new() };
        tracing::info!(target: "anabranch::child", %shard, pid, from, "{shown}{more}");
    }
}
