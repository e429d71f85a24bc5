//! One question to a child at a time, and what each of its words means for it.
//!
//! | asked | the child says | so |
//! |---|---|---|
//! | an action | status for it | done |
//! | an action | status for another, or for none | the child is at fault |
//! | an action that allows it | checkpoint | write it down, answer |
//! | an action that allowed it until the lease went | checkpoint | answer `ShutdownException` |
//! | another action | checkpoint | answer `InvalidStateException` |
//! | nothing | anything | odd: log it |
//! | an action | nothing for too long, or its output ends | the child is at fault |

use crate::protocol::{Action, FromChild, ToChild};
use anabranch_model::position::{Position, StartPosition};
use std::fmt;

/// Java's name for a checkpoint where none is allowed.
pub const INVALID_STATE: &str = "InvalidStateException";
/// Java's name for a checkpoint after the lease was lost.
pub const SHUTDOWN: &str = "ShutdownException";
/// Java's name for a checkpoint outside of what was given.
pub const ILLEGAL_ARGUMENT: &str = "IllegalArgumentException";
/// How much of what a child said goes into a message.
const SHOWN: usize = 200;

/// What a child was asked and has not answered yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChildSession {
    /// The open question.
    asked: Option<OpenAction>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OpenAction {
    action: Action,
    may_checkpoint: bool,
    /// Whether the lease went meanwhile.
    lost: bool,
}

/// What follows from something that the child said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionStep {
    /// It has done what it was asked.
    Done,
    /// Write this down and answer.
    Checkpoint(ChildCheckpoint),
    /// Answer with this error.
    Refuse {
        /// What it gave.
        wanted: ChildCheckpoint,
        /// Java's name for why not.
        error: &'static str,
    },
    /// It said something that nobody asked for.
    Unexpected(String),
    /// It does not keep to the protocol. It has to go.
    Fault(ChildFault),
}

/// A checkpoint as the child asked for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildCheckpoint {
    /// The sequence number as it was given; without it, all that the child was given.
    pub sequence_number: Option<String>,
    /// The sub-sequence number as it was given.
    pub sub_sequence_number: Option<i64>,
}

/// Why a child is no use any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChildFault {
    /// It can't be started.
    #[error(
        "{command:?} can't be started ({detail}): correct executableName, which is split at spaces and looked up in PATH"
    )]
    NotStarted {
        /// What was to be started.
        command: String,
        /// What the system said.
        detail: String,
    },
    /// It answered another question.
    #[error("asked for {asked}, it answered {}", Named(.answered.as_deref()))]
    WrongAnswer {
        /// What it was asked.
        asked: Action,
        /// What it answered.
        answered: Option<String>,
    },
    /// It ended, or closed its output.
    #[error("it ended while asked for {asked}{}", how(.status.as_deref()))]
    Ended {
        /// What it was asked.
        asked: Action,
        /// How it ended, if that is known.
        status: Option<String>,
    },
    /// Its lease is lost, and it was not done in time.
    #[error("it was not done with {asked} {ms} ms after its lease was lost (childExitMillis)")]
    Late {
        /// What it was asked.
        asked: Action,
        /// The time that it had.
        ms: u64,
    },
    /// It did not answer in time.
    #[error("it did not answer {asked} within {seconds} s (timeoutInSeconds)")]
    Silent {
        /// What it was asked.
        asked: Action,
        /// The time that it had.
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
    /// The child is asked.
    pub fn begin(&mut self, request: &ToChild) {
        let ToChild { action, may_checkpoint, .. } = *request;
        self.asked = Some(OpenAction { action, may_checkpoint, lost: false });
    }

    /// What the child has not answered yet.
    pub fn open_action(&self) -> Option<Action> {
        self.asked.map(|asked| asked.action)
    }

    /// From now on no checkpoint is written for the open question: the lease is lost.
    pub fn forbid_checkpoints(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.lost = true;
        }
    }

    /// The child said something.
    pub fn on_message(&mut self, message: FromChild) -> SessionStep {
        let Some(OpenAction { action, may_checkpoint, lost }) = self.asked else {
            return match message {
                FromChild::Status { response_for } => SessionStep::Unexpected(format!(
                    "a status for {} that nobody asked for",
                    Named(response_for.as_deref())
                )),
                // It waits for an answer, and would wait for ever without one.
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

/// What a child gave as a checkpoint is no place in a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointPositionError;

impl ChildCheckpoint {
    /// Where the child wants the checkpoint; `None` is all that it was given.
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

    /// What a child hears after it was asked and said something, in one word.
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
        // Without a sequence number the sub-sequence number says nothing.
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
        /// A batch counts as done only by the status that names it, whatever else was said.
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
