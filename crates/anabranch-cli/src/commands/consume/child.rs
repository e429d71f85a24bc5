//! A child process of `--exec`: records go in as lines, and answers come back in the same order.

use crate::line::{one_line, short};
use crate::output::print_note;
use anabranch::clock::Clock;
use anabranch_model::ids::ShardId;
use anabranch_multilang::process_group;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

/// Time for a child to exit after its input was closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(4);

/// A record for the child, and the channel for its answer.
pub(super) struct ChildRecord {
    /// The record as a JSON line.
    pub(super) line: String,
    pub(super) answer: oneshot::Sender<Result<(), NotDone>>,
}

/// Reason that a record is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotDone {
    /// The child reported a failure or timed out.
    Failed(String),
    /// The child exited before it answered, perhaps because of the record.
    ChildExited(String),
    /// The child was told to exit, could not be run, or was handling another record.
    Interrupted(String),
}

impl NotDone {
    /// Converts the reason for a record that did not cause it.
    fn for_other_record(&self) -> Self {
        match self {
            Self::Failed(why) | Self::ChildExited(why) | Self::Interrupted(why) => {
                Self::Interrupted(why.clone())
            }
        }
    }
}

/// Classification of a line from the child.
#[derive(Debug, PartialEq, Eq)]
enum ChildAnswer {
    /// The record is done.
    Done,
    /// The record failed, with the reason.
    Failed(String),
    /// Other output, which is not an answer.
    Print,
}

fn read_answer(line: &str) -> ChildAnswer {
    let line = line.trim();
    let word = line.split(':').next().unwrap_or(line).trim();
    if line.eq_ignore_ascii_case("ok") {
        ChildAnswer::Done
    } else if word.eq_ignore_ascii_case("fail") {
        let why = line[word.len()..].trim_start_matches(':').trim();
        ChildAnswer::Failed(if why.is_empty() {
            "the program answered fail without a reason".to_owned()
        } else {
            why.to_owned()
        })
    } else {
        ChildAnswer::Print
    }
}

struct RunningChild {
    child: Child,
    /// Process group of the shell and all processes it started, killed on drop.
    leader: KillGroupOnDrop,
    /// `None` once no more records are sent.
    stdin: Option<ChildStdin>,
    stdout: ChildLines<BufReader<ChildStdout>>,
    shard: ShardId,
    waiting: PendingAnswers,
}

/// A process group, identified by its leader while that is known to exist.
#[derive(Default)]
pub(super) struct ProcessGroup(Mutex<Option<u32>>);

impl ProcessGroup {
    /// Kills the leader and all processes it started.
    pub(super) fn kill(&self) {
        if let Some(leader) = *self.lock() {
            process_group::kill_group(leader);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<u32>> {
        // A number is never half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills the group on drop and forgets it, because its id may be reused afterwards.
struct KillGroupOnDrop(Arc<ProcessGroup>);

impl Drop for KillGroupOnDrop {
    fn drop(&mut self) {
        self.0.kill();
        *self.0.lock() = None;
    }
}

/// Records waiting for an answer, oldest first.
struct PendingAnswers {
    asked: VecDeque<oneshot::Sender<Result<(), NotDone>>>,
    /// Time from which the oldest is waiting, by the clock.
    since_ms: u64,
    /// True once the child has answered anything.
    has_answered: bool,
    clock: Clock,
}

/// Runs a child until its input ends or it exits. Unanswered records get the reason.
pub(super) async fn run(
    command: Arc<str>,
    shard: ShardId,
    timeout: Duration,
    mut asks: mpsc::Receiver<ChildRecord>,
    leader: Arc<ProcessGroup>,
) {
    let end = match RunningChild::start(&command, &shard, leader) {
        Err(error) => NotDone::Interrupted(format!("the program can't be started: {error}")),
        Ok(mut running) => {
            let why = running.run_conversation(&mut asks, timeout).await;
            running.end(why).await
        }
    };
    // These were never sent to the child.
    asks.close();
    while let Ok(ask) = asks.try_recv() {
        let _ = ask.answer.send(Err(end.clone()));
    }
}

/// Reason that a conversation ended.
enum ConversationEnd {
    /// No more records arrive.
    NoMore,
    /// The child closed its output or input.
    Closed,
    /// The child did not answer in time.
    Hung,
}

impl RunningChild {
    fn start(command: &str, shard: &ShardId, leader: Arc<ProcessGroup>) -> std::io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .env("ANABRANCH_SHARD", shard.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A separate group: Ctrl-C goes to this process only, and a kill covers all processes
            // of the shell.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let missing = || std::io::Error::other("the child process has no pipes");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        *leader.lock() = child.id();
        Ok(Self {
            leader: KillGroupOnDrop(leader),
            child,
            stdin: Some(stdin),
            stdout: ChildLines::new(BufReader::new(stdout)),
            shard: shard.clone(),
            waiting: PendingAnswers {
                asked: VecDeque::new(),
                since_ms: 0,
                has_answered: false,
                clock: Clock::machine(),
            },
        })
    }

    /// Sends records to the child and returns its answers.
    async fn run_conversation(
        &mut self,
        asks: &mut mpsc::Receiver<ChildRecord>,
        timeout: Duration,
    ) -> ConversationEnd {
        loop {
            tokio::select! {
                biased;
                () = self.waiting.wait_timeout(timeout) => return ConversationEnd::Hung,
                line = self.stdout.next_line() => match line {
                    Some(line) => self.waiting.answered(&self.shard, &line),
                    None => return ConversationEnd::Closed,
                },
                ask = asks.recv() => {
                    let Some(ask) = ask else { return ConversationEnd::NoMore };
                    if let Some(end) = self.send_record(ask, timeout).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Writes a record to the child, and reads answers meanwhile, so that neither side blocks.
    async fn send_record(
        &mut self,
        ask: ChildRecord,
        timeout: Duration,
    ) -> Option<ConversationEnd> {
        if ask.answer.is_closed() {
            // The caller is gone, perhaps with the lease.
            return None;
        }
        self.waiting.push(ask.answer);
        let mut stdin = self.stdin.take()?;
        let mut end = None;
        {
            let write = async {
                stdin.write_all(ask.line.as_bytes()).await?;
                stdin.flush().await
            };
            let mut write = std::pin::pin!(write);
            loop {
                tokio::select! {
                    biased;
                    () = self.waiting.wait_timeout(timeout) => {
                        end = Some(ConversationEnd::Hung);
                        break;
                    }
                    line = self.stdout.next_line() => {
                        let Some(line) = line else {
                            end = Some(ConversationEnd::Closed);
                            break;
                        };
                        self.waiting.answered(&self.shard, &line);
                    }
                    written = &mut write => {
                        if written.is_err() {
                            end = Some(ConversationEnd::Closed);
                        }
                        break;
                    }
                }
            }
        }
        self.stdin = Some(stdin);
        end
    }

    /// Ends the child and answers all waiting records. The child answers in order, so the oldest
    /// record is the one it was handling. Returns the reason for records that it was not sent.
    async fn end(mut self, end: ConversationEnd) -> NotDone {
        drop(self.stdin.take());
        let why = match end {
            ConversationEnd::Hung => {
                self.kill().await;
                let hung = "the program did not answer in time and was killed; restarting it";
                NotDone::Failed(hung.to_owned())
            }
            // Answers to earlier records may still arrive.
            ConversationEnd::NoMore => {
                let rest = async {
                    while let Some(line) = self.stdout.next_line().await {
                        self.waiting.answered(&self.shard, &line);
                    }
                };
                let _ = tokio::time::timeout(EXIT_TIMEOUT, rest).await;
                self.wait_or_kill().await;
                NotDone::Interrupted("this worker no longer reads the shard".to_owned())
            }
            ConversationEnd::Closed => ended(self.wait_or_kill().await, self.waiting.has_answered),
        };
        let others = why.for_other_record();
        if let Some(oldest) = self.waiting.asked.pop_front() {
            let _ = oldest.send(Err(why));
        }
        for answer in self.waiting.asked.drain(..) {
            let _ = answer.send(Err(others.clone()));
        }
        others
    }

    async fn wait_or_kill(&mut self) -> Option<ExitStatus> {
        if let Ok(status) = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await {
            return status.ok();
        }
        self.kill().await;
        None
    }

    /// Kills the shell and all processes it started.
    async fn kill(&mut self) {
        self.leader.0.kill();
        // This fails only if the process has already ended.
        let _ = self.child.kill().await;
    }
}

impl PendingAnswers {
    fn push(&mut self, answer: oneshot::Sender<Result<(), NotDone>>) {
        if self.asked.is_empty() {
            self.since_ms = self.clock.now_ms();
        }
        self.asked.push_back(answer);
    }

    /// Waits until the oldest record times out.
    async fn wait_timeout(&self, timeout: Duration) {
        if self.asked.is_empty() {
            return std::future::pending().await;
        }
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.clock.sleep_until(self.since_ms.saturating_add(timeout_ms)).await;
    }

    /// Processes an output line of the child.
    fn answered(&mut self, shard: &ShardId, line: &str) {
        let result = match read_answer(line) {
            ChildAnswer::Print => return print_note!("{}: {}", short(shard), one_line(line)),
            ChildAnswer::Done => Ok(()),
            ChildAnswer::Failed(why) => Err(NotDone::Failed(why)),
        };
        // The timeout of the next record starts now.
        self.since_ms = self.clock.now_ms();
        self.has_answered = true;
        if let Some(answer) = self.asked.pop_front() {
            // The caller may be gone, with its lease.
            let _ = answer.send(result);
        } else {
            print_note!(
                "{}: {} (ignored: no record waits for an answer)",
                short(shard),
                one_line(line)
            );
        }
    }
}

/// Signals that request an exit: SIGHUP, SIGINT, SIGTERM.
const TOLD_TO_END: [i32; 3] = [1, 2, 15];
/// Exit codes of a shell that can't run or find a command.
const NOT_RUN: [i32; 2] = [126, 127];

/// Returns the meaning of a child's exit for the record it was handling. A child that has answered
/// records and exits with success, as programs that restart themselves do, has not handled it.
fn ended(status: Option<ExitStatus>, has_answered: bool) -> NotDone {
    let Some(status) = status else {
        return NotDone::ChildExited("the program exited (killed); restarting it".to_owned());
    };
    let why = format!("the program exited ({status}); restarting it");
    // A shell returns the status of its last command.
    let of_shell = status.code().and_then(|code| code.checked_sub(128));
    let told = status.signal().or(of_shell).is_some_and(|number| TOLD_TO_END.contains(&number));
    let not_run = status.code().is_some_and(|code| NOT_RUN.contains(&code));
    let in_order = has_answered && status.success();
    if told || not_run || in_order { NotDone::Interrupted(why) } else { NotDone::ChildExited(why) }
}

// Output lines of a child: arbitrary bytes, with a bound on the buffered length.

/// Maximum buffered bytes of a line.
const LINE_MAX_BYTES: usize = 1 << 20;

/// Reads the output of a child line by line.
pub(super) struct ChildLines<R> {
    out: R,
    /// Start of the incomplete line.
    line: Vec<u8>,
    /// Bytes of the line that were dropped.
    dropped: u64,
}

impl<R: AsyncBufRead + Unpin> ChildLines<R> {
    pub(super) fn new(out: R) -> Self {
        Self { out, line: Vec::new(), dropped: 0 }
    }

    /// Returns the next line without its line break, or `None` at the end. Cancellation safe: an
    /// incomplete line is kept.
    pub(super) async fn next_line(&mut self) -> Option<String> {
        loop {
            // A read error counts as the end of output.
            let came = self.out.fill_buf().await.unwrap_or_default();
            if came.is_empty() {
                let over = self.line.is_empty() && self.dropped == 0;
                // An unterminated last line is not a complete answer.
                return (!over).then(|| self.take() + " … (without a line break)");
            }
            let line_break = came.iter().position(|byte| *byte == b'\n');
            let part = &came[..line_break.unwrap_or(came.len())];
            let kept = part.len().min(LINE_MAX_BYTES - self.line.len());
            self.line.extend_from_slice(&part[..kept]);
            self.dropped += (part.len() - kept) as u64;
            let used = part.len() + usize::from(line_break.is_some());
            self.out.consume(used);
            if line_break.is_some() {
                return Some(self.take());
            }
        }
    }

    fn take(&mut self) -> String {
        let line = std::mem::take(&mut self.line);
        let mut text = String::from_utf8_lossy(&line).into_owned();
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let _ = write!(text, " … ({dropped} more bytes of this line)");
        }
        text
    }
}

#[cfg(test)]
mod printed_tests {
    use super::*;

    async fn lines(bytes: &[u8]) -> Vec<String> {
        let mut printed = ChildLines::new(bytes);
        let mut lines = Vec::new();
        while let Some(line) = printed.next_line().await {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn a_line_is_what_stands_before_a_line_break_in_any_bytes() {
        let check = async |bytes: &[u8], expected: &[&str]| {
            assert_eq!(lines(bytes).await, expected, "{}", bytes.escape_ascii());
        };
        check(b"", &[]).await;
        check(b"ok\n", &["ok"]).await;
        check(b"ok\n\nok", &["ok", "", "ok … (without a line break)"]).await;
        check(b"\xff\xfe\nok\n", &["\u{fffd}\u{fffd}", "ok"]).await;
    }

    #[tokio::test]
    async fn the_end_of_a_line_that_is_too_long_is_dropped_and_the_next_line_is_whole() {
        let mut bytes = vec![b'x'; LINE_MAX_BYTES + 5];
        bytes.extend_from_slice(b"\nok\n");
        let lines = lines(&bytes).await;
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("x … (5 more bytes of this line)"));
        assert!(lines[0].len() < LINE_MAX_BYTES + 100);
        assert_eq!(lines[1], "ok");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_of_its_own_is_laid_to_the_record() {
        let check = |status: i32, answered: bool, interrupted: bool| {
            let end = ended(Some(ExitStatus::from_raw(status)), answered);
            assert_eq!(matches!(end, NotDone::Interrupted(_)), interrupted, "{status}: {end:?}");
        };
        let exit = |code: i32| code << 8;
        for signal in TOLD_TO_END {
            check(signal, false, true);
            check(exit(128 + signal), false, true);
        }
        check(exit(126), false, true);
        check(exit(127), false, true);
        check(exit(0), true, true);
        check(exit(0), false, false);
        // The record may be the cause: an exception, a crash, or too much memory.
        for own in [exit(1), exit(2), exit(139), 6, 9, 11] {
            check(own, true, false);
        }
    }

    #[test]
    fn an_answer_is_ok_or_fail_and_everything_else_is_printed() {
        let check =
            |line: &str, expected: ChildAnswer| assert_eq!(read_answer(line), expected, "{line}");
        check("ok", ChildAnswer::Done);
        check(" OK\r", ChildAnswer::Done);
        check("fail: no such customer: 7", ChildAnswer::Failed("no such customer: 7".to_owned()));
        check("fail", ChildAnswer::Failed("the program answered fail without a reason".to_owned()));
        check("failing over", ChildAnswer::Print);
        check("okay", ChildAnswer::Print);
        check("", ChildAnswer::Print);
    }
}
