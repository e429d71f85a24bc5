//! Lines for the child, byte for byte as Java's daemon writes them.

use super::action::{Action, ShutdownMessages};
use anabranch_model::position::Position;
use anabranch_model::record::{PartitionKey, UserRecord};
use base64_simd::STANDARD;
use serde::Serialize;

/// Space for the JSON around a record's data and key, in bytes.
const RECORD_ROOM: usize = 220;

/// A request to a child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToChild {
    /// Requested action.
    pub action: Action,
    /// True if the child may checkpoint before it answers.
    pub may_checkpoint: bool,
    /// The line, including its line break.
    pub line: Vec<u8>,
}

/// The reply to a checkpoint of the child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointReply<'a> {
    /// Sequence number as the child sent it.
    pub sequence_number: Option<&'a str>,
    /// Sub-sequence number as the child sent it.
    pub sub_sequence_number: Option<i64>,
    /// Name of Java's exception, if the checkpoint failed.
    pub error: Option<&'a str>,
}

impl ToChild {
    fn new(action: Action, may_checkpoint: bool, line: Vec<u8>) -> Self {
        Self { action, may_checkpoint, line }
    }

    /// Creates a request to initialize `shard`, which is done up to `at`.
    pub fn initialize(shard: &str, at: Position) -> Self {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Initialize<'a> {
            action: &'a str,
            shard_id: &'a str,
            sequence_number: &'a str,
            sub_sequence_number: u64,
        }
        let (sequence, sub) = at.to_row();
        let action = Action::Initialize;
        let message = Initialize {
            action: action.name(),
            shard_id: shard,
            sequence_number: &sequence,
            sub_sequence_number: sub,
        };
        Self::new(action, false, line(&message))
    }

    /// Creates a request to handle records.
    pub fn process_records(records: &[UserRecord], millis_behind_latest: Option<u64>) -> Self {
        let bytes: usize = records
            .iter()
            .map(|r| r.data.len() * 4 / 3 + r.partition_key.len() + RECORD_ROOM)
            .sum();
        let mut out = Vec::with_capacity(bytes + 80);
        out.extend_from_slice(br#"{"action":"processRecords","records":["#);
        for (index, record) in records.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_record(&mut out, record);
        }
        out.extend_from_slice(br#"],"millisBehindLatest":"#);
        match millis_behind_latest {
            Some(ms) => push_number(&mut out, ms),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b"}\n");
        Self::new(Action::ProcessRecords, true, out)
    }

    /// Creates a notification that the lease was lost.
    pub fn lease_lost(messages: ShutdownMessages) -> Self {
        match messages {
            ShutdownMessages::Kcl2 => Self::bare(Action::LeaseLost, false),
            ShutdownMessages::Kcl1 => Self::shutdown("ZOMBIE", false),
        }
    }

    /// Creates a notification that the shard has ended.
    pub fn shard_ended(messages: ShutdownMessages) -> Self {
        match messages {
            ShutdownMessages::Kcl2 => Self::bare(Action::ShardEnded, true),
            ShutdownMessages::Kcl1 => Self::shutdown("TERMINATE", true),
        }
    }

    /// Creates a notification that the daemon is about to stop.
    pub fn shutdown_requested() -> Self {
        Self::bare(Action::ShutdownRequested, true)
    }

    fn bare(action: Action, may_checkpoint: bool) -> Self {
        Self::new(action, may_checkpoint, format!("{{\"action\":\"{action}\"}}\n").into_bytes())
    }

    fn shutdown(reason: &str, may_checkpoint: bool) -> Self {
        let line = format!("{{\"action\":\"shutdown\",\"reason\":\"{reason}\"}}\n");
        Self::new(Action::Shutdown, may_checkpoint, line.into_bytes())
    }
}

impl CheckpointReply<'_> {
    /// Returns the line, including its line break.
    pub fn line(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Checkpoint<'a> {
            action: &'a str,
            sequence_number: Option<&'a str>,
            sub_sequence_number: Option<i64>,
            error: Option<&'a str>,
        }
        line(&Checkpoint {
            action: "checkpoint",
            sequence_number: self.sequence_number,
            sub_sequence_number: self.sub_sequence_number,
            error: self.error,
        })
    }
}

fn line(message: &impl Serialize) -> Vec<u8> {
    let mut out = serde_json::to_vec(message).expect("text and numbers are always JSON");
    out.push(b'\n');
    out
}

fn push_record(out: &mut Vec<u8>, record: &UserRecord) {
    out.extend_from_slice(br#"{"data":""#);
    STANDARD.encode_append(&record.data, out);
    out.extend_from_slice(br#"","partitionKey":"#);
    push_key(out, &record.partition_key);
    out.extend_from_slice(br#","sequenceNumber":""#);
    record.sequence.write_digits(out);
    out.extend_from_slice(br#"","approximateArrivalTimestamp":"#);
    push_number(out, record.arrival_ms);
    out.extend_from_slice(br#","subSequenceNumber":"#);
    push_number(out, record.sub);
    out.extend_from_slice(br#","action":"record"}"#);
}

/// Appends a partition key as a JSON string. Most keys need no escaping.
fn push_key(out: &mut Vec<u8>, key: &PartitionKey) {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if key.as_bytes().iter().all(plain) {
        out.push(b'"');
        out.extend_from_slice(key.as_bytes());
        out.push(b'"');
    } else {
        push_text(out, key.as_str());
    }
}

/// Appends a JSON string. Node also ends lines at U+2028 and U+2029, so these are escaped: a key
/// must not split a message.
fn push_text(out: &mut Vec<u8>, text: &str) {
    if !text.contains(['\u{2028}', '\u{2029}']) {
        serde_json::to_writer(out, text).expect("text is always JSON, and memory takes it");
        return;
    }
    let quoted = serde_json::to_string(text).expect("text is always JSON");
    let quoted = quoted.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    out.extend_from_slice(quoted.as_bytes());
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    serde_json::to_writer(out, &number).expect("a number is always JSON, and memory takes it");
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const SEQUENCE: &str = "49590338271490256608559692538361571095921575989136588898";

    fn record(key: &str, sub: u64, data: &'static [u8]) -> UserRecord {
        UserRecord {
            sequence: SEQUENCE.parse().unwrap(),
            sub,
            aggregated: sub > 0,
            partition_key: key.into(),
            explicit_hash_key: None,
            data: Bytes::from_static(data),
            arrival_ms: 1_700_000_000_123,
        }
    }

    fn check(request: &ToChild, action: Action, may_checkpoint: bool, line: &str) {
        assert_eq!(String::from_utf8_lossy(&request.line), format!("{line}\n"));
        assert_eq!((request.action, request.may_checkpoint), (action, may_checkpoint));
    }

    #[test]
    fn every_message_is_written_as_java_writes_it() {
        check(
            &ToChild::initialize("shardId-000000000001", Position::TrimHorizon),
            Action::Initialize,
            false,
            r#"{"action":"initialize","shardId":"shardId-000000000001","sequenceNumber":"TRIM_HORIZON","subSequenceNumber":0}"#,
        );
        let at = Position::At { sequence: SEQUENCE.parse().unwrap(), sub: 7 };
        check(
            &ToChild::initialize("shardId-000000000001", at),
            Action::Initialize,
            false,
            &format!(
                r#"{{"action":"initialize","shardId":"shardId-000000000001","sequenceNumber":"{SEQUENCE}","subSequenceNumber":7}}"#
            ),
        );
        check(
            &ToChild::process_records(&[record("a\"é", 0, b"hi"), record("", 3, b"")], Some(12)),
            Action::ProcessRecords,
            true,
            &format!(
                r#"{{"action":"processRecords","records":[{{"data":"aGk=","partitionKey":"a\"é","sequenceNumber":"{SEQUENCE}","approximateArrivalTimestamp":1700000000123,"subSequenceNumber":0,"action":"record"}},{{"data":"","partitionKey":"","sequenceNumber":"{SEQUENCE}","approximateArrivalTimestamp":1700000000123,"subSequenceNumber":3,"action":"record"}}],"millisBehindLatest":12}}"#
            ),
        );
        check(
            &ToChild::process_records(&[], None),
            Action::ProcessRecords,
            true,
            r#"{"action":"processRecords","records":[],"millisBehindLatest":null}"#,
        );
        let (now, old) = (ShutdownMessages::Kcl2, ShutdownMessages::Kcl1);
        let lost = r#"{"action":"leaseLost"}"#;
        check(&ToChild::lease_lost(now), Action::LeaseLost, false, lost);
        let ended = r#"{"action":"shardEnded"}"#;
        check(&ToChild::shard_ended(now), Action::ShardEnded, true, ended);
        let requested = r#"{"action":"shutdownRequested"}"#;
        check(&ToChild::shutdown_requested(), Action::ShutdownRequested, true, requested);
        let zombie = r#"{"action":"shutdown","reason":"ZOMBIE"}"#;
        check(&ToChild::lease_lost(old), Action::Shutdown, false, zombie);
        let terminate = r#"{"action":"shutdown","reason":"TERMINATE"}"#;
        check(&ToChild::shard_ended(old), Action::Shutdown, true, terminate);
    }

    #[test]
    fn a_checkpoint_is_answered_with_what_the_child_gave_and_the_name_of_an_exception() {
        let check = |sequence_number, sub_sequence_number, error, line: &str| {
            let reply = CheckpointReply { sequence_number, sub_sequence_number, error };
            assert_eq!(String::from_utf8(reply.line()).unwrap(), format!("{line}\n"));
        };
        check(
            None,
            None,
            None,
            r#"{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null,"error":null}"#,
        );
        check(
            Some("12"),
            Some(3),
            Some("ThrottlingException"),
            r#"{"action":"checkpoint","sequenceNumber":"12","subSequenceNumber":3,"error":"ThrottlingException"}"#,
        );
    }

    #[test]
    fn no_key_cuts_a_message_in_two() {
        for key in [
            "",
            "plain ~",
            "a\"b\\c",
            "\u{7f}",
            "\0",
            "é",
            "\n",
            "\r",
            "\r\n",
            "\u{2028}",
            "a\u{2029}b",
            "\u{85}",
            "\u{b}",
            "\u{c}",
        ] {
            let request = ToChild::process_records(&[record(key, 0, b"x")], None);
            let text = String::from_utf8(request.line).unwrap();
            let body = text.strip_suffix('\n').unwrap();
            assert!(!body.contains(['\n', '\r', '\u{2028}', '\u{2029}']), "{body}");
            let read: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(read["records"][0]["partitionKey"], key);
        }
    }
}
