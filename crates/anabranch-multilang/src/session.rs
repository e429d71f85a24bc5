//! State machine of a child: one open request at a time, and the effect of each message.
//!
//! | open request | message | effect |
//! |---|---|---|
//! | an action | status for it | done |
//! | an action | status for another action, or for none | fault |
//! | an action that allows it | checkpoint | write it and reply |
//! | an action that allowed it until the lease was lost | checkpoint | reply `ShutdownException` |
//! | another action | checkpoint | reply `InvalidStateException` |
//! | none | status | log it as unexpected |
//! | none | checkpoint | reply `InvalidStateException` |
//! | an action | silence for too long, or end of output | fault |

use crate::protocol::{Action, FromChild, ToChild};
use anabranch_model::position::{Position, StartPosition};
use std::fmt;

/// Java's exception for a checkpoint where none is allowed.
pub const INVALID_STATE: &str = "InvalidStateException";
/// Java's exception for a checkpoint after the lease was lost.
pub const SHUTDOWN: &str = "ShutdownException";
/// Java's exception for a checkpoint outside the received records.
pub const ILLEGAL_ARGUMENT: &str = "IllegalArgumentException";
/// Maximum characters of a child's message in an error.
const SHOWN: usize = 200;

/// Session state: the request that the child has not answered yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChildSession {
    /// The open request.
    asked: Option<OpenAction>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OpenAction {
    action: Action,
    may_checkpoint: bool,
    /// True once the lease was lost.
    lost: bool,
}

/// Effect of a message from the child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionStep {
    /// The request is complete.
    Done,
    /// Write this checkpoint and reply.
    Checkpoint(ChildCheckpoint),
    /// Reply with this error.
    Refuse {
        /// The checkpoint it requested.
        wanted: ChildCheckpoint,
        /// Name of Java's exception.
        error: &'static str,
    },
    /// The message was unsolicited. Holds its description.
    Unexpected(String),
    /// The child violated the protocol and must be killed.
    Fault(ChildFault),
}

/// A checkpoint as the child requested it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildCheckpoint {
    /// Sequence number as sent. `None` means everything the child has received.
    pub sequence_number: Option<String>,
    /// Sub-sequence number as sent.
    pub sub_sequence_number: Option<i64>,
}

/// Fault that makes a child unusable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChildFault {
    /// The program can't be started.
    #[error(
        "{command:?} can't be started ({detail}): correct executableName, which is split at spaces and looked up in PATH"
    )]
    NotStarted {
        /// The command.
        command: String,
        /// Error of the operating system.
        detail: String,
    },
    /// The child answered a different request.
    #[error("the child answered {} instead of {asked}", Named(.answered.as_deref()))]
    WrongAnswer {
        /// The open request.
        asked: Action,
        /// The action in its answer.
        answered: Option<String>,
    },
    /// The child ended, or closed its output.
    #[error("the child exited during {asked}{}", how(.status.as_deref()))]
    Ended {
        /// The open request.
        asked: Action,
        /// Exit status, if known.
        status: Option<String>,
    },
    /// The child did not finish in time after its lease was lost.
    #[error(
        "the child did not finish {asked} within {ms} ms after its lease was lost (childExitMillis)"
    )]
    Late {
        /// The open request.
        asked: Action,
        /// Time limit in milliseconds.
        ms: u64,
    },
    /// The child did not answer in time.
    #[error("the child did not answer {asked} within {seconds} s (timeoutInSeconds)")]
    Silent {
        /// The open request.
        asked: Action,
        /// Time limit in seconds.
        seconds: u64,
    },
}

struct Named<'a>(Option<&'a str>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(action) => write!(f, "{:?}", action.chars().take(SHOWN).collect::<String>()),
            None => f.write_str("nothing"),
        }
    }
}

fn how(status: Option<&str>) -> String {
    status.map(|status| format!(" ({status})")).unwrap_or_default()
}

impl ChildSession {
    /// Records that a request was sent to the child.
    pub fn begin(&mut self, request: &ToChild) {
        let ToChild { action, may_checkpoint, .. } = *request;
        self.asked = Some(OpenAction { action, may_checkpoint, lost: false });
    }

    /// Returns the action that the child has not answered yet.
    pub fn open_action(&self) -> Option<Action> {
        self.asked.map(|asked| asked.action)
    }

    /// Rejects further checkpoints for the open request, because the lease is lost.
    pub fn forbid_checkpoints(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.lost = true;
        }
    }

    /// Processes a message from the child.
    pub fn on_message(&mut self, message: FromChild) -> SessionStep {
        let Some(OpenAction { action, may_checkpoint, lost }) = self.asked else {
            return match message {
                FromChild::Status { response_for } => SessionStep::Unexpected(format!(
                    "an unsolicited status for {}",
                    Named(response_for.as_deref())
                )),
                // The child waits for a reply, and would wait forever without one.
                FromChild::Checkpoint { sequence_number, sub_sequence_number } => {
                    let wanted = ChildCheckpoint { sequence_number, sub_sequence_number };
                    SessionStep::Refuse { wanted, error: INVALID_STATE }
                }
            };
        };
        match message {
            FromChild::Status { response_for }
                if response_for.as_deref() == Some(action.name()) =>
            {
                self.asked = None;
                SessionStep::Done
            }
            FromChild::Status { response_for: answered } => {
                SessionStep::Fault(ChildFault::WrongAnswer { asked: action, answered })
            }
            FromChild::Checkpoint { sequence_number, sub_sequence_number } => {
                let wanted = ChildCheckpoint { sequence_number, sub_sequence_number };
                match wanted.position() {
                    _ if !may_checkpoint => SessionStep::Refuse { wanted, error: INVALID_STATE },
                    _ if lost => SessionStep::Refuse { wanted, error: SHUTDOWN },
                    Err(CheckpointPositionError) => {
                        SessionStep::Refuse { wanted, error: ILLEGAL_ARGUMENT }
                    }
                    Ok(_) => SessionStep::Checkpoint(wanted),
                }
            }
        }
    }
}

/// Error for a checkpoint that is not a position in a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointPositionError;

impl ChildCheckpoint {
    /// Returns the position of the checkpoint. `None` means everything the child has received.
    pub fn position(&self) -> Result<Option<Position>, CheckpointPositionError> {
        let Some(sequence) = &self.sequence_number else { return Ok(None) };
        let sub = self.sub_sequence_number.unwrap_or(0);
        let sub = u64::try_from(sub).map_err(|_| CheckpointPositionError)?;
        let position = Position::from_row(sequence.trim(), sub, StartPosition::TrimHorizon);
        position.map(Some).map_err(|_| CheckpointPositionError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ShutdownMessages;
    use proptest::prelude::*;

    fn requests() -> [ToChild; 6] {
        let messages = ShutdownMessages::default();
        [
            ToChild::initialize("shardId-000000000000", Position::Latest),
            ToChild::process_records(&[], None),
            ToChild::lease_lost(messages),
            ToChild::shard_ended(messages),
            ToChild::shutdown_requested(),
            ToChild::shard_ended(ShutdownMessages::Kcl1),
        ]
    }

    fn status(action: Option<&str>) -> FromChild {
        FromChild::Status { response_for: action.map(str::to_owned) }
    }

    fn checkpoint(sequence: Option<&str>, sub_sequence_number: Option<i64>) -> FromChild {
        FromChild::Checkpoint { sequence_number: sequence.map(str::to_owned), sub_sequence_number }
    }

    /// Checks the effect of a message after a request.
    fn check(request: &ToChild, said: &FromChild, expected: &str) {
        let mut session = ChildSession::default();
        session.begin(request);
        let step = session.on_message(said.clone());
        let got = match &step {
            SessionStep::Done => "done",
            SessionStep::Checkpoint(_) => "checkpoint",
            SessionStep::Refuse { error, .. } => error,
            SessionStep::Unexpected(_) => "odd",
            SessionStep::Fault(_) => "fault",
        };
        assert_eq!(got, expected, "{}: {said:?} gave {step:?}", request.action);
        assert_eq!(session.open_action().is_none(), step == SessionStep::Done);
    }

    #[test]
    fn an_action_is_done_by_a_status_that_names_it_and_by_no_other() {
        for request in requests() {
            check(&request, &status(Some(request.action.name())), "done");
            check(&request, &status(Some("somethingElse")), "fault");
            check(&request, &status(None), "fault");
        }
    }

    #[test]
    fn a_checkpoint_is_taken_only_where_java_takes_one() {
        let allowed = [Action::ProcessRecords, Action::ShardEnded, Action::ShutdownRequested];
        for request in requests() {
            let terminate = request.action == Action::Shutdown;
            let taken = allowed.contains(&request.action) || terminate;
            let expected = if taken { "checkpoint" } else { INVALID_STATE };
            check(&request, &checkpoint(None, None), expected);
            check(&request, &checkpoint(Some("12"), Some(3)), expected);
        }
        let request = ToChild::process_records(&[], None);
        for (sequence, sub) in [("x", None), ("", None), ("12", Some(-1)), ("AT_TIMESTAMP", None)] {
            check(&request, &checkpoint(Some(sequence), sub), ILLEGAL_ARGUMENT);
        }
        // Without a sequence number the sub-sequence number is ignored.
        check(&request, &checkpoint(None, Some(-5)), "checkpoint");
    }

    #[test]
    fn what_nobody_asked_for_changes_nothing() {
        let mut session = ChildSession::default();
        assert!(matches!(
            session.on_message(status(Some("processRecords"))),
            SessionStep::Unexpected(_)
        ));
        let refused = session.on_message(checkpoint(None, None));
        assert!(matches!(refused, SessionStep::Refuse { error: INVALID_STATE, .. }), "{refused:?}");
        assert_eq!(session, ChildSession::default());
    }

    #[test]
    fn after_the_loss_of_the_lease_no_checkpoint_is_written() {
        let mut session = ChildSession::default();
        session.begin(&ToChild::process_records(&[], None));
        session.forbid_checkpoints();
        let step = session.on_message(checkpoint(None, None));
        assert!(matches!(step, SessionStep::Refuse { error: SHUTDOWN, .. }), "{step:?}");
        assert_eq!(session.on_message(status(Some("processRecords"))), SessionStep::Done);
        session.begin(&ToChild::initialize("shardId-000000000000", Position::Latest));
        session.forbid_checkpoints();
        let step = session.on_message(checkpoint(None, None));
        assert!(matches!(step, SessionStep::Refuse { error: INVALID_STATE, .. }), "{step:?}");
    }

    fn any_message() -> impl Strategy<Value = FromChild> {
        let name = prop_oneof![
            Just("initialize".to_owned()),
            Just("processRecords".to_owned()),
            Just("shardEnded".to_owned()),
            ".{0,20}",
        ];
        prop_oneof![
            proptest::option::of(name).prop_map(|response_for| FromChild::Status { response_for }),
            (proptest::option::of("[0-9]{0,60}|.{0,9}"), any::<Option<i64>>()).prop_map(
                |(sequence_number, sub_sequence_number)| {
                    FromChild::Checkpoint { sequence_number, sub_sequence_number }
                }
            ),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A batch is complete only with the status that names it, whatever other messages arrive.
        #[test]
        fn no_talk_of_a_child_makes_done_what_it_did_not_answer(
            said in proptest::collection::vec(any_message(), 0..20),
        ) {
            let mut session = ChildSession::default();
            session.begin(&ToChild::process_records(&[], None));
            for message in said {
                let names_it = message == status(Some("processRecords"));
                let open = session.open_action().is_some();
                let step = session.on_message(message);
                prop_assert_eq!(step == SessionStep::Done, open && names_it);
            }
        }
    }
}
