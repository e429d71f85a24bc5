//! Start of a child process and its pipe tasks.

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

/// Capacity for messages that the daemon has not handled yet. A child waits for each answer.
const MESSAGES_WAITING: usize = 16;
/// Capacity for lines to the child. At most one request and one checkpoint reply are pending.
const LINES_WAITING: usize = 2;

/// Settings shared by all children of a daemon.
#[derive(Clone, Debug)]
pub struct ChildSettings {
    /// Program and its arguments.
    pub command: Vec<String>,
    /// Longest silence of a child with an open request, in ms. `None` means no limit.
    pub silence_ms: Option<u64>,
    /// Time for a child to exit after its input was closed, in ms. It is then killed.
    pub exit_ms: u64,
    /// True if standard error is inherited from the daemon. Otherwise it is logged.
    pub inherit_stderr: bool,
}

/// A running child. Dropping it kills it and all processes it started.
#[derive(Debug)]
pub struct Child {
    pub(super) shard: Arc<str>,
    pub(super) pid: u32,
    pub(super) process: tokio::process::Child,
    /// Queue of lines for its input. `None` once the input is closed.
    pub(super) lines: Option<mpsc::Sender<Vec<u8>>>,
    /// Messages from the child.
    pub(super) messages: mpsc::Receiver<FromChild>,
    /// State of the open request.
    pub(super) session: ChildSession,
    /// Reply to a checkpoint that was not sent yet.
    pub(super) owed: Option<PendingReply>,
    /// Pipe tasks, aborted with the child.
    #[expect(dead_code, reason = "held, so that the tasks have an owner")]
    pub(super) pipes: JoinSet<()>,
    pub(super) settings: Arc<ChildSettings>,
    /// Clock for timeouts.
    pub(super) clock: Clock,
    /// Registration among the running children.
    pub(super) life: Option<ChildGuard>,
    /// True if it exited by itself when asked to. Processes that it left running are then not
    /// killed.
    pub(super) ended_in_order: bool,
}

impl ChildSettings {
    /// Splits an `executableName` into words at spaces, without quoting, as Java does.
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
            return Err(not_started("it names no program".to_owned()));
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

    /// Registers the child in `living`, so that it can be killed together with all others.
    pub(crate) fn registered_in(mut self, living: &ChildRegistry) -> Self {
        self.life = Some(living.register(self.pid));
        self
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A wrapper that does not `exec` has the real worker in its group. The runtime kills only
        // the wrapper.
        if !self.ended_in_order {
            process_group::kill_group(self.pid);
        }
    }
}

/// Writes lines to the pipe, each as a whole: a sender that is cancelled leaves no partial line in
/// the pipe. Returns, and so closes the pipe, when no more lines can come or the child closes its
/// end.
async fn write_lines(mut pipe: ChildStdin, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if pipe.write_all(&line).await.is_err() || pipe.flush().await.is_err() {
            return;
        }
    }
}
