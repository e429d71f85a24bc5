//! Records as lines: JSON objects or plain text.

use crate::time_spec;
use anabranch::producer::NewRecord;
use anabranch_model::hash::HashKey;
use anabranch_model::ids::ShardId;
use anabranch_model::limits::PARTITION_KEY_MAX_CHARS;
use anabranch_model::record::UserRecord;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// JSON representation of an output record.
#[derive(Debug, Serialize)]
struct RecordJson<'a> {
    shard: &'a str,
    sequence: String,
    sub: u64,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
    arrived: String,
}

/// Formats a record as a JSON line. Data that is valid UTF-8 stays text.
pub(crate) fn json(shard: &ShardId, record: &UserRecord) -> String {
    let data = std::str::from_utf8(&record.data).ok();
    let out = RecordJson {
        shard: shard.as_str(),
        sequence: record.sequence.to_string(),
        sub: record.sub,
        key: record.partition_key.as_str(),
        hash_key: record.explicit_hash_key.map(|hash| hash.to_string()),
        data,
        data_base64: data.is_none().then(|| base64_simd::STANDARD.encode_to_string(&record.data)),
        arrived: time_spec::text(record.arrival_ms),
    };
    let mut line = serde_json::to_string(&out).expect("strings and numbers always make JSON");
    // JSON leaves these characters unescaped, and terminals interpret them.
    if line.contains(is_high_control) {
        let mut escaped = String::with_capacity(line.len() + 16);
        for letter in line.chars() {
            if is_high_control(letter) {
                let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
            } else {
                escaped.push(letter);
            }
        }
        line = escaped;
    }
    line.push('\n');
    line
}

fn is_high_control(letter: char) -> bool {
    matches!(letter, '\u{7f}'..='\u{9f}')
}

/// Formats a record as a plain text line: time, shard, key, data.
pub(crate) fn plain(shard: &ShardId, record: &UserRecord) -> String {
    let data = match std::str::from_utf8(&record.data) {
        Ok(text) => one_line(text),
        Err(_) => format!("{} bytes: {}", record.data.len(), record.data.escape_ascii()),
    };
    let key = one_line(record.partition_key.as_str());
    format!("{} {} {key}\t{data}\n", time_spec::text(record.arrival_ms), short(shard))
}

/// Returns the short name of a shard by its number, or its id if it has none.
pub(crate) fn short(shard: &ShardId) -> String {
    shard.index().map_or_else(|| shard.to_string(), |index| format!("shard-{index}"))
}

/// Escapes control characters, which would move the cursor of a terminal.
pub(crate) fn one_line(text: &str) -> String {
    let escaped = |letter: char| letter.is_control() && letter != '\t';
    if !text.contains(escaped) {
        return text.to_owned();
    }
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if escaped(letter) {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

/// JSON representation of an input record. Other fields, as printed by `tail` and `consume`, are
/// ignored.
#[derive(Debug, Deserialize)]
struct InputJson {
    key: Option<String>,
    data: Option<String>,
    data_base64: Option<String>,
    hash_key: Option<HashField>,
}

/// A hash key as a string of digits, or as a number that fits `u64`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum HashField {
    Digits(String),
    Number(u64),
}

/// Parses the JSON line of a record.
pub(crate) fn read_json(line: &[u8]) -> Result<NewRecord, String> {
    let read: InputJson = serde_json::from_slice(line).map_err(|error| not_a_record(&error))?;
    let key = read.key.ok_or(
        "it has no \"key\": a record is {\"key\": \"…\", \"data\": \"…\"}, with \"data_base64\" \
         for binary data",
    )?;
    let data = match (read.data, read.data_base64) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(coded)) => match base64_simd::STANDARD.decode_to_vec(coded) {
            Ok(data) => Bytes::from(data),
            Err(_) => return Err("its \"data_base64\" is not base64".to_owned()),
        },
        (None, None) => return Err("it has neither \"data\" nor \"data_base64\"".to_owned()),
        (Some(_), Some(_)) => return Err("it has both \"data\" and \"data_base64\"".to_owned()),
    };
    let record = new_record(key, data)?;
    let hash = match read.hash_key {
        None => return Ok(record),
        Some(HashField::Number(number)) => HashKey(number.into()),
        Some(HashField::Digits(digits)) => {
            digits.parse().map_err(|why| format!("its hash_key: {why}"))?
        }
    };
    Ok(record.with_explicit_hash_key(hash))
}

/// Creates a record with a key that the service accepts.
pub(crate) fn new_record(key: String, data: Bytes) -> Result<NewRecord, String> {
    match key.chars().count() {
        0 => Err("its key is empty".to_owned()),
        1..=PARTITION_KEY_MAX_CHARS => Ok(NewRecord::new(key, data)),
        chars => {
            Err(format!("its key has {chars} characters; the maximum is {PARTITION_KEY_MAX_CHARS}"))
        }
    }
}

fn not_a_record(error: &serde_json::Error) -> String {
    let why = error.to_string();
    let why = why.split(" at line 1").next().unwrap_or(&why);
    format!(
        "it is not a record ({why}, column {}): give one JSON object per line, such as {{\"key\": \
         \"customer-7\", \"data\": \"paid\"}}; for plain text use --lines --key KEY",
        error.column()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, data: &'static [u8]) -> UserRecord {
        UserRecord {
            sequence: "49590338271490256608559692538361571095921575989136588898".parse().unwrap(),
            sub: 3,
            aggregated: true,
            partition_key: key.into(),
            explicit_hash_key: None,
            data: Bytes::from_static(data),
            arrival_ms: 1_500,
        }
    }

    #[test]
    fn a_record_is_printed_as_one_line_whatever_it_holds() {
        let shard = ShardId::from_index(4);
        assert_eq!(
            json(&shard, &record("a", b"text \"x\"\n")),
            "{\"shard\":\"shardId-000000000004\",\"sequence\":\"49590338271490256608559692538361571095921575989136588898\",\"sub\":3,\"key\":\"a\",\"data\":\"text \\\"x\\\"\\n\",\"arrived\":\"1970-01-01T00:00:01.500Z\"}\n"
        );
        let commands = json(&shard, &record("a", "\u{9b}31m\u{7f}".as_bytes()));
        assert!(commands.contains("\"data\":\"\\u009b31m\\u007f\""), "{commands}");
        assert!(json(&shard, &record("a", &[0xff, 0])).contains("\"data_base64\":\"/wA=\""));
        assert_eq!(
            plain(&shard, &record("a\u{1b}[2J", b"one\ntwo")),
            "1970-01-01T00:00:01.500Z shard-4 a\\u{1b}[2J\tone\\ntwo\n"
        );
        assert!(plain(&shard, &record("a", &[0xff, 0])).contains("2 bytes: \\xff\\x00"));
    }

    #[test]
    fn what_was_printed_is_read_again() {
        let shard = ShardId::from_index(4);
        for data in [&b"text"[..], &[0xff, 0xfe], "\u{9b}\u{7f}".as_bytes()] {
            let mut printed = record("a", data);
            printed.explicit_hash_key = Some(HashKey(u128::MAX));
            let read = read_json(json(&shard, &printed).as_bytes()).unwrap();
            let expected = NewRecord::new("a", Bytes::from_static(data));
            assert_eq!(read, expected.with_explicit_hash_key(HashKey(u128::MAX)));
        }
    }

    #[test]
    fn a_bad_line_says_what_is_wrong_with_it() {
        let check = |line: &str, expected: &str| {
            let why = read_json(line.as_bytes()).unwrap_err();
            assert!(why.contains(expected), "{line}: {why}");
        };
        check("hello", "not a record");
        check("[1]", "not a record");
        check("{\"data\":\"x\"}", "no \"key\"");
        check("{\"key\":\"a\"}", "neither");
        check("{\"key\":\"a\",\"data\":\"x\",\"data_base64\":\"eA==\"}", "both");
        check("{\"key\":\"a\",\"data_base64\":\"!\"}", "not base64");
        check("{\"key\":\"\",\"data\":\"x\"}", "empty");
        check(&format!("{{\"key\":\"{}\",\"data\":\"x\"}}", "k".repeat(257)), "257 characters");
        check("{\"key\":\"a\",\"data\":\"x\",\"hash_key\":\"-1\"}", "hash_key");
        assert!(read_json(b"{\"key\":\"a\",\"data\":\"\",\"hash_key\":7}").is_ok());
    }
}
