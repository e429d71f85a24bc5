//! Output lines of a child: the two protocol messages, and everything else that programs print.

use super::flat_json::{self, PlainValue};

/// A message from the child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromChild {
    /// The child has completed a request.
    Status {
        /// The action that it names.
        response_for: Option<String>,
    },
    /// The child requests a checkpoint.
    Checkpoint {
        /// Last record of the checkpoint, inclusive. `None` means everything it has received.
        sequence_number: Option<String>,
        /// Position inside an aggregate, as sent.
        sub_sequence_number: Option<i64>,
    },
}

/// Classification of an output line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChildLine {
    /// An empty line.
    Blank,
    /// A protocol message.
    Message(FromChild),
    /// Other output of the program, which is logged.
    Print,
}

/// Distinguishes messages from other output by the rules of Java's daemon: a message has the fields
/// of the protocol and no others. Numbers may be sent as strings, and strings as numbers.
pub fn parse(line: &str) -> ChildLine {
    if line.trim().is_empty() {
        return ChildLine::Blank;
    }
    match flat_json::read(line).and_then(message) {
        Some(message) => ChildLine::Message(message),
        None => ChildLine::Print,
    }
}

fn message(fields: Vec<(String, PlainValue)>) -> Option<FromChild> {
    let named = fields.iter().find(|(name, _)| name == "action")?;
    match &named.1 {
        PlainValue::Text(action) if action == "status" => status(fields),
        PlainValue::Text(action) if action == "checkpoint" => checkpoint(fields),
        _ => None,
    }
}

fn status(fields: Vec<(String, PlainValue)>) -> Option<FromChild> {
    let mut response_for = None;
    for (name, value) in fields {
        match name.as_str() {
            "action" => {}
            "responseFor" => response_for = as_text(value),
            _ => return None,
        }
    }
    Some(FromChild::Status { response_for })
}

fn checkpoint(fields: Vec<(String, PlainValue)>) -> Option<FromChild> {
    let (mut sequence_number, mut sub_sequence_number) = (None, None);
    for (name, value) in fields {
        match name.as_str() {
            "action" | "error" => {}
            "sequenceNumber" => sequence_number = as_text(value),
            "subSequenceNumber" => {
                sub_sequence_number = match value {
                    PlainValue::Null => None,
                    PlainValue::Text(text) | PlainValue::Number(text) => {
                        Some(text.trim().parse().ok()?)
                    }
                    PlainValue::Flag(_) => return None,
                }
            }
            _ => return None,
        }
    }
    Some(FromChild::Checkpoint { sequence_number, sub_sequence_number })
}

fn as_text(value: PlainValue) -> Option<String> {
    match value {
        PlainValue::Text(text) | PlainValue::Number(text) => Some(text),
        PlainValue::Flag(flag) => Some(flag.to_string()),
        PlainValue::Null => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(action: Option<&str>) -> ChildLine {
        ChildLine::Message(FromChild::Status { response_for: action.map(str::to_owned) })
    }

    fn checkpoint(sequence: Option<&str>, sub_sequence_number: Option<i64>) -> ChildLine {
        let sequence_number = sequence.map(str::to_owned);
        ChildLine::Message(FromChild::Checkpoint { sequence_number, sub_sequence_number })
    }

    #[test]
    fn messages_are_told_from_prints_as_java_tells_them() {
        let long = "49590338271490256608559692538361571095921575989136588898";
        for (line, expected) in [
            ("", ChildLine::Blank),
            ("  \t", ChildLine::Blank),
            // As sent by the workers for Python and Node.
            (r#"{"action": "status", "responseFor": "initialize"}"#, status(Some("initialize"))),
            (r#"{"action":"status","responseFor":"leaseLost"}"#, status(Some("leaseLost"))),
            (
                r#"{"action": "checkpoint", "sequenceNumber": null, "subSequenceNumber": null}"#,
                checkpoint(None, None),
            ),
            (r#"{"action":"checkpoint","sequenceNumber":"12"}"#, checkpoint(Some("12"), None)),
            (r#"{"action":"checkpoint"}"#, checkpoint(None, None)),
            // As sent by the worker for .NET, with the field of the reply.
            (
                r#"{"sequenceNumber":"12","subSequenceNumber":3,"error":null,"action":"checkpoint"}"#,
                checkpoint(Some("12"), Some(3)),
            ),
            // Numbers for strings, and strings for numbers.
            (
                &format!(
                    r#"{{"action":"checkpoint","sequenceNumber":{long},"subSequenceNumber":"4"}}"#
                ),
                checkpoint(Some(long), Some(4)),
            ),
            (
                r#"{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":-1}"#,
                checkpoint(Some("1"), Some(-1)),
            ),
            (r#"{"action":"status"}"#, status(None)),
            (r#"{"action":"status","responseFor":"initialize"} done"#, status(Some("initialize"))),
            // Other output.
            ("hello", ChildLine::Print),
            ("{}", ChildLine::Print),
            (r#"{"action":"record"}"#, ChildLine::Print),
            (r#"{"action":"initialize","shardId":"s"}"#, ChildLine::Print),
            (r#"{"action":"status","responseFor":"initialize","level":"info"}"#, ChildLine::Print),
            (
                r#"{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":"x"}"#,
                ChildLine::Print,
            ),
            (r#"info {"action":"status","responseFor":"initialize"}"#, ChildLine::Print),
            (r#"{"action":"status","responseFor":"init"#, ChildLine::Print),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
