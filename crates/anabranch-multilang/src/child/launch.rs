//! How a child is started.

use super::conversation::PendingReply;
use super::output::{self, OutputSource};
use crate::child_registry::{ChildGuard, ChildRegistry};
use crate::process_group;
use crate::protocol::FromChild;
use crate::session::{ChildFault, ChildSession};
use anabranch::clock::Clock;
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Messages that may wait until the daemon has time for them. A child waits for each answer.
const MESSAGES_WAITING: usize = 16;
/// Lines that may wait for the child. One question and one answer to a checkpoint are all there is.
const LINES_WAITING: usize = 2;

/// What every child of a daemon is given.
#[derive(Clone, Debug)]
pub struct ChildSettings {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The longest silence of a child that was asked something. `None` is for ever.
    pub silence_ms: Option<u64>,
    /// How long a child may take to end after its input was closed, before it is killed.
    pub exit_ms: u64,
    /// Whether what it prints to standard error goes to the daemon's own, as it is.
    pub inherit_stderr: bool,
}

/// A running child. Dropped, it is killed, and all that it started.
#[derive(Debug)]
pub struct Child {
    /// Its shard.
    pub(super) shard: Arc<str>,
    /// Its process id.
    pub(super) pid: u32,
    /// The process.
    pub(super) process: tokio::process::Child,
    /// Lines on their way to it. Gone when its input is closed.
    pub(super) lines: Option<mpsc::Sender<Vec<u8>>>,
    /// What it says.
    pub(super) messages: mpsc::Receiver<FromChild>,
    /// What it was asked.
    pub(super) session: ChildSession,
    /// The answer to a checkpoint that it has not got yet.
    pub(super) owed: Option<PendingReply>,
    /// The tasks at its pipes. They end with it.
    #[expect(dead_code, reason = "held, so that the tasks have an owner")]
    pub(super) pipes: JoinSet<()>,
    /// What it was started with.
    pub(super) settings: Arc<ChildSettings>,
    /// Where time-outs are counted.
    pub(super) clock: Clock,
    /// Counts it among those that live.
    pub(super) life: Option<ChildGuard>,
    /// Whether it ended by itself when it was to. What it left running is its own affair then.
    pub(super) ended_in_order: bool,
}

impl ChildSettings {
    /// The words of an `executableName`: split at spaces, nothing is quoted, as in Java.
    pub fn words(executable: &str) -> Vec<String> {
        executable.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }
}

impl Child {
    /// Starts a child for `shard`.
    pub fn start(
        settings: &Arc<ChildSettings>,
        shard: &str,
        clock: &Clock,
    ) -> Result<Self, ChildFault> {
        let not_started =
            |detail: String| ChildFault::NotStarted { command: settings.command.join(" "), detail };
        let Some((program, args)) = settings.command.split_first() else {
            return Err(not_started("there is no program in it".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(args).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(if settings.inherit_stderr { Stdio::inherit() } else { Stdio::piped() });
        // Ctrl-C in a terminal goes to the whole group. The daemon stops its children in order, so
        // they are in groups of their own.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command.spawn().map_err(|error| not_started(error.to_string()))?;
        let (shard, pid) = (Arc::from(shard), process.id().unwrap_or_default());
        let source = OutputSource { shard: Arc::clone(&shard), pid };
        let mut pipes = JoinSet::new();
        let (said, messages) = mpsc::channel(MESSAGES_WAITING);
        if let Some(pipe) = process.stdout.take() {
            pipes.spawn(output::listen(pipe, source.clone(), said));
        }
        if let Some(pipe) = process.stderr.take() {
            pipes.spawn(output::log_errors(pipe, source, clock.clone()));
        }
        let (lines, to_write) = mpsc::channel(LINES_WAITING);
        if let Some(pipe) = process.stdin.take() {
            pipes.spawn(write_lines(pipe, to_write));
        }
        Ok(Self {
            shard,
            pid,
            process,
            lines: Some(lines),
            messages,
            session: ChildSession::default(),
            owed: None,
            pipes,
            settings: Arc::clone(settings),
            clock: clock.clone(),
            life: None,
            ended_in_order: false,
        })
    }

    /// The same child, which can be killed with all that live.
    pub(crate) fn registered_in(mut self, living: &ChildRegistry) -> Self {
        self.life = Some(living.register(self.pid));
        self
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A wrapper that does not `exec` has the real worker in its group; the runtime kills only
        // the wrapper.
        if !self.ended_in_order {
            process_group::kill_group(self.pid);
        }
    }
}

/// Writes whole lines: whoever gives one may be dropped, and no half of it stays in the pipe. Ends
/// and so closes the pipe when no more lines can come, or when nobody reads it.
async fn write_lines(mut pipe: ChildStdin, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if pipe.write_all(&line).await.is_err() || pipe.flush().await.is_err() {
            return;
        }
    }
}
