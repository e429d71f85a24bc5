//! Output of a child: protocol messages are forwarded, and other output is logged with shard and
//! pid.

use super::lines::{LineSplitter, SplitLine};
use crate::protocol::{ChildLine, FromChild, parse};
use anabranch::clock::Clock;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;

/// Size of one read from a pipe. Messages are short, and each child needs two buffers.
const READ_BYTES: usize = 4 * 1024;
/// Size at which a long line on standard error is logged in pieces.
const LOGGED_CHARS: usize = 4_000;
/// Time after which an incomplete line on standard error is logged.
const QUIET_MS: u64 = 500;

/// Child that produced the output.
#[derive(Clone, Debug)]
pub(super) struct OutputSource {
    pub(super) shard: Arc<str>,
    /// Process id.
    pub(super) pid: u32,
}

/// Reads standard output until its end. Blocks while the message channel is full, so that a child
/// that floods its output is throttled.
pub(super) async fn listen(
    mut pipe: impl AsyncRead + Unpin,
    source: OutputSource,
    messages: mpsc::Sender<FromChild>,
) {
    let (mut cutter, mut buffer) = (LineSplitter::default(), vec![0; READ_BYTES]);
    loop {
        let mut heard = Vec::new();
        let ended = match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => {
                heard.extend(cutter.finish());
                true
            }
            Ok(count) => {
                cutter.push(&buffer[..count], |line| heard.push(line));
                false
            }
        };
        for line in heard {
            // A truncated line is never a message.
            match if line.cut > 0 { ChildLine::Print } else { parse(&line.text) } {
                ChildLine::Blank => {}
                ChildLine::Print => source.log("stdout", &line),
                ChildLine::Message(message) => {
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

/// Logs standard error until its end. Programs print prompts without a line break, so an incomplete
/// line is logged after a pause, and a long line in pieces.
pub(super) async fn log_errors(
    mut pipe: impl AsyncRead + Unpin,
    source: OutputSource,
    clock: Clock,
) {
    let (mut cutter, mut buffer) = (LineSplitter::default(), vec![0; READ_BYTES]);
    loop {
        let read = tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => read,
            () = clock.sleep(QUIET_MS), if cutter.kept() > 0 => {
                source.log_rest(&mut cutter);
                continue;
            }
        };
        let Ok(count @ 1..) = read else { break };
        for piece in buffer[..count].chunks(LOGGED_CHARS) {
            cutter.push(piece, |line| source.log("stderr", &line));
            if cutter.kept() >= LOGGED_CHARS {
                source.log_rest(&mut cutter);
            }
        }
    }
    source.log_rest(&mut cutter);
}

impl OutputSource {
    fn log_rest(&self, cutter: &mut LineSplitter) {
        if let Some(line) = cutter.finish() {
            self.log("stderr", &line);
        }
    }

    fn log(&self, from: &'static str, line: &SplitLine) {
        let Self { shard, pid } = self;
        if line.text.trim().is_empty() {
            return;
        }
        let shown: String = line.text.chars().take(2 * LOGGED_CHARS).collect();
        let cut = line.text.len() - shown.len() + line.cut;
        let more = if cut > 0 { format!(" … ({cut} more bytes)") } else { String::new() };
        tracing::info!(target: "anabranch::child", %shard, pid, from, "{shown}{more}");
    }
}
