//! One child process: records go in as lines, answers come back in the same order.

use super::printed::Printed;
use crate::line::{one_line, short};
use crate::output::note;
use anabranch::clock::Clock;
use anabranch_model::ids::ShardId;
use anabranch_multilang::group;
use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

/// How long a child may take to end once its input is closed.
const FAREWELL: Duration = Duration::from_secs(4);

/// A record for the child, and whom to tell what it answered.
pub(super) struct Ask {
    /// The record as a line.
    pub(super) line: String,
    /// The answer; an error is why it failed.
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

/// What the child said to a record.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// It is done.
    Done,
    /// It failed, and why.
    Failed(String),
    /// No answer: something that it prints.
    Print,
}

fn read_answer(line: &str) -> Answer {
    let line = line.trim();
    let word = line.split(':').next().unwrap_or(line).trim();
    if line.eq_ignore_ascii_case("ok") {
        Answer::Done
    } else if word.eq_ignore_ascii_case("fail") {
        let why = line[word.len()..].trim_start_matches(':').trim();
        Answer::Failed(if why.is_empty() {
            "the program failed it".to_owned()
        } else {
            why.to_owned()
        })
    } else {
        Answer::Print
    }
}

/// A running child.
struct Running {
    /// The shell.
    child: Child,
    /// The shell and all that it started. None of them outlives the conversation.
    leader: Ended,
    /// Closed when nothing more comes.
    stdin: Option<ChildStdin>,
    stdout: Printed<BufReader<ChildStdout>>,
    shard: ShardId,
    /// Who waits for an answer.
    waiting: Waiting,
}

/// A process group by the process that made it, as long as it is known to be there.
#[derive(Default)]
pub(super) struct Leader(Mutex<Option<u32>>);

impl Leader {
    /// Kills the process and all that it started, at once.
    pub(super) fn kill(&self) {
        if let Some(leader) = *self.lock() {
            group::kill(leader);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<u32>> {
        // A number is never half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills the group with the conversation. Its number may be given out again after that.
struct Ended(Arc<Leader>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill();
        *self.0.lock() = None;
    }
}

/// Who waits for an answer, oldest first.
struct Waiting {
    asked: VecDeque<oneshot::Sender<Result<(), String>>>,
    /// Since when the oldest waits, by the clock.
    since_ms: u64,
    clock: Clock,
}

/// Runs a child until its input ends or it does. Whoever still waits is told why.
pub(super) async fn run(
    command: Arc<str>,
    shard: ShardId,
    timeout: Duration,
    mut asks: mpsc::Receiver<Ask>,
    leader: Arc<Leader>,
) {
    let end = match Running::start(&command, &shard, leader) {
        Err(error) => {
            // The record that woke it is told, and so are those behind it.
            let why = format!("the program can't be started: {error}");
            asks.close();
            while let Ok(ask) = asks.try_recv() {
                let _ = ask.answer.send(Err(why.clone()));
            }
            return;
        }
        Ok(mut running) => {
            let why = running.converse(&mut asks, timeout).await;
            running.end(why).await
        }
    };
    asks.close();
    while let Ok(ask) = asks.try_recv() {
        let _ = ask.answer.send(Err(end.clone()));
    }
}

/// Why a conversation ended.
enum End {
    /// No more records come.
    NoMore,
    /// The child closed its output, or can't be written to.
    Closed,
    /// It did not answer in time.
    Hung,
}

impl Running {
    fn start(command: &str, shard: &ShardId, leader: Arc<Leader>) -> std::io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .env("ANABRANCH_SHARD", shard.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C is for us, and a kill is for all that the shell started.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let missing = || std::io::Error::other("it has no pipes");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        *leader.lock() = child.id();
        Ok(Self {
            leader: Ended(leader),
            child,
            stdin: Some(stdin),
            stdout: Printed::new(BufReader::new(stdout)),
            shard: shard.clone(),
            waiting: Waiting { asked: VecDeque::new(), since_ms: 0, clock: Clock::machine() },
        })
    }

    /// Passes records in and answers out.
    async fn converse(&mut self, asks: &mut mpsc::Receiver<Ask>, timeout: Duration) -> End {
        loop {
            tokio::select! {
                biased;
                () = self.waiting.late(timeout) => return End::Hung,
                line = self.stdout.next_line() => match line {
                    Some(line) => self.waiting.answered(&self.shard, &line),
                    None => return End::Closed,
                },
                ask = asks.recv() => {
                    let Some(ask) = ask else { return End::NoMore };
                    if let Some(end) = self.pass(ask, timeout).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Writes a record to the child, which may be busy printing answers meanwhile.
    async fn pass(&mut self, ask: Ask, timeout: Duration) -> Option<End> {
        if ask.answer.is_closed() {
            // Whoever asked has gone, perhaps with the lease.
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
                    () = self.waiting.late(timeout) => {
                        end = Some(End::Hung);
                        break;
                    }
                    line = self.stdout.next_line() => {
                        let Some(line) = line else {
                            end = Some(End::Closed);
                            break;
                        };
                        self.waiting.answered(&self.shard, &line);
                    }
                    written = &mut write => {
                        if written.is_err() {
                            end = Some(End::Closed);
                        }
                        break;
                    }
                }
            }
        }
        self.stdin = Some(stdin);
        end
    }

    /// Ends the child, and tells those who wait. Returns what they were told.
    async fn end(mut self, end: End) -> String {
        drop(self.stdin.take());
        let why = match end {
            End::Hung => {
                self.kill().await;
                "the program did not answer in time and was killed; it is started again".to_owned()
            }
            // Answers to what was passed in before may still come.
            End::NoMore => {
                let rest = async {
                    while let Some(line) = self.stdout.next_line().await {
                        self.waiting.answered(&self.shard, &line);
                    }
                };
                let _ = tokio::time::timeout(FAREWELL, rest).await;
                self.wait_or_kill().await;
                "the shard is no longer read here".to_owned()
            }
            End::Closed => {
                let status = self.wait_or_kill().await;
                format!("the program ended ({}); it is started again", described(status))
            }
        };
        for answer in self.waiting.asked.drain(..) {
            let _ = answer.send(Err(why.clone()));
        }
        why
    }

    async fn wait_or_kill(&mut self) -> Option<ExitStatus> {
        if let Ok(status) = tokio::time::timeout(FAREWELL, self.child.wait()).await {
            return status.ok();
        }
        self.kill().await;
        None
    }

    /// Kills the shell and all that it started.
    async fn kill(&mut self) {
        self.leader.0.kill();
        // It can fail only where the process has ended already.
        let _ = self.child.kill().await;
    }
}

impl Waiting {
    fn push(&mut self, answer: oneshot::Sender<Result<(), String>>) {
        if self.asked.is_empty() {
            self.since_ms = self.clock.now_ms();
        }
        self.asked.push_back(answer);
    }

    /// Waits until the oldest has waited for too long.
    async fn late(&self, timeout: Duration) {
        if self.asked.is_empty() {
            return std::future::pending().await;
        }
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.clock.sleep_until(self.since_ms.saturating_add(timeout_ms)).await;
    }

    /// Takes a line that the child printed.
    fn answered(&mut self, shard: &ShardId, line: &str) {
        let result = match read_answer(line) {
            Answer::Print => return note!("{}: {}", short(shard), one_line(line)),
            Answer::Done => Ok(()),
            Answer::Failed(why) => Err(why),
        };
        // The next one has all of the time from here.
        self.since_ms = self.clock.now_ms();
        if let Some(answer) = self.asked.pop_front() {
            // Who asked may have gone, with its lease.
            let _ = answer.send(result);
        } else {
            note!("{}: {} (an answer to nothing)", short(shard), one_line(line));
        }
    }
}

fn described(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "killed".to_owned(), |status| status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_ok_or_fail_and_everything_else_is_printed() {
        let check =
            |line: &str, expected: Answer| assert_eq!(read_answer(line), expected, "{line}");
        check("ok", Answer::Done);
        check(" OK\r", Answer::Done);
        check("fail: no such customer: 7", Answer::Failed("no such customer: 7".to_owned()));
        check("fail", Answer::Failed("the program failed it".to_owned()));
        check("failing over", Answer::Print);
        check("okay", Answer::Print);
        check("", Answer::Print);
    }
}
