//! A dead letter and its two encodings: a line of JSON, or a JSON header before the data.

use crate::consumer::modes::closure::Delivery;
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Maximum length of the stored error message.
const ERROR_MAX_BYTES: usize = 2_048;

/// A record that was set aside after too many failed attempts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    /// Stream and shard that the record came from.
    pub shard: Arc<LeaseKey>,
    /// The original record, unchanged.
    pub record: UserRecord,
    /// Last error message of the handler, cut to two kilobytes.
    pub error: String,
}

/// Error of decoding a dead letter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a dead letter: {why}")]
#[non_exhaustive]
pub struct ParseDeadLetterError {
    /// The part that is missing or malformed.
    pub why: String,
}

impl DeadLetter {
    pub(in crate::consumer) fn new(shard: &LeaseKey, record: &UserRecord, error: &str) -> Self {
        let mut end = error.len().min(ERROR_MAX_BYTES);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        let (record, error) = (record.clone(), error[..end].to_owned());
        Self { shard: Arc::new(shard.clone()), record, error }
    }

    /// Decodes the dead letter that a record of a dead-letter stream carries.
    pub fn of(delivery: &UserRecord) -> Result<Self, ParseDeadLetterError> {
        let end = delivery.data.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| invalid("the data does not begin with a line of JSON"))?;
        Self::from_head(&delivery.data[..end], delivery.data.slice(end + 1..))
    }

    /// Returns the record as a handler receives it. It has no lease term.
    pub fn delivery(&self) -> Delivery {
        Delivery { shard: Arc::clone(&self.shard), lease_term: None, record: self.record.clone() }
    }

    /// Encodes the dead letter as one line: a JSON object and a line feed.
    pub(in crate::consumer) fn to_line(&self) -> String {
        let mut fields = self.head();
        let data = base64_simd::STANDARD.encode_to_string(&self.record.data);
        fields.insert("data".to_owned(), data.into());
        format!("{}\n", Value::Object(fields))
    }

    /// Decodes a line of [`DeadLetter::to_line`].
    pub(in crate::consumer) fn from_line(line: &str) -> Result<Self, ParseDeadLetterError> {
        let fields: Value =
            serde_json::from_str(line).map_err(|error| invalid(&error.to_string()))?;
        let data = text(&fields, "data")?;
        let data = base64_simd::STANDARD.decode_to_vec(data);
        let data = data.map_err(|_| invalid("`data` is not base64"))?;
        Self::from_fields(&fields, data.into())
    }

    /// Encodes the dead letter for a stream: a line of JSON, then the original data.
    pub(in crate::consumer) fn to_data(&self) -> Bytes {
        let mut data = format!("{}\n", Value::Object(self.head())).into_bytes();
        data.extend_from_slice(&self.record.data);
        data.into()
    }

    /// Returns all fields except the data.
    fn head(&self) -> Map<String, Value> {
        let (record, hash) = (&self.record, self.record.explicit_hash_key);
        let fields = json!({
            "stream": self.shard.stream.as_str(),
            "shard": self.shard.shard.as_str(),
            "sequence": record.sequence.to_string(),
            "sub": record.sub,
            "aggregated": record.aggregated,
            "key": record.partition_key.as_str(),
            "explicit_hash_key": hash.map(|hash| hash.to_string()),
            "arrival_ms": record.arrival_ms,
            "error": self.error,
        });
        match fields {
            Value::Object(fields) => fields,
            _ => unreachable!("braces make an object"),
        }
    }

    fn from_head(head: &[u8], data: Bytes) -> Result<Self, ParseDeadLetterError> {
        let fields: Value =
            serde_json::from_slice(head).map_err(|error| invalid(&error.to_string()))?;
        Self::from_fields(&fields, data)
    }

    fn from_fields(fields: &Value, data: Bytes) -> Result<Self, ParseDeadLetterError> {
        let number = |name: &str| {
            fields[name].as_u64().ok_or_else(|| invalid(&format!("the number `{name}` is missing")))
        };
        let hash = match fields["explicit_hash_key"].as_str() {
            None => None,
            Some(hash) => Some(hash.parse().map_err(|_| {
                invalid(
                    "`explicit_hash_key` is not a hash \
                                                                 key",
                )
            })?),
        };
        let sequence = text(fields, "sequence")?;
        Ok(Self {
            shard: Arc::new(LeaseKey::new(text(fields, "stream")?, text(fields, "shard")?)),
            record: UserRecord {
                sequence: sequence.parse().map_err(|_| {
                    invalid(
                        "`sequence` is not a sequence \
                                                                number",
                    )
                })?,
                sub: number("sub")?,
                aggregated: fields["aggregated"].as_bool().unwrap_or(false),
                partition_key: text(fields, "key")?.into(),
                explicit_hash_key: hash,
                data,
                arrival_ms: number("arrival_ms")?,
            },
            error: text(fields, "error")?.to_owned(),
        })
    }
}

fn text<'a>(fields: &'a Value, name: &str) -> Result<&'a str, ParseDeadLetterError> {
    fields[name].as_str().ok_or_else(|| invalid(&format!("the text `{name}` is missing")))
}

fn invalid(why: &str) -> ParseDeadLetterError {
    ParseDeadLetterError { why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::hash::HashKey;

    fn parked(key: &str, hash: Option<u128>, data: &'static [u8], error: &str) -> DeadLetter {
        let record = UserRecord {
            sequence: "49590338271490256608559692538361571095921575989136588898".parse().unwrap(),
            sub: 3,
            aggregated: true,
            partition_key: key.into(),
            explicit_hash_key: hash.map(HashKey),
            data: Bytes::from_static(data),
            arrival_ms: 5,
        };
        DeadLetter::new(&LeaseKey::new("s", "shardId-000000000000"), &record, error)
    }

    #[test]
    fn a_parked_record_is_whole_in_every_form() {
        for (key, hash, data, error) in [
            ("k", None, &b""[..], ""),
            ("a \"key\"\\\n\0", Some(7), b"one\ntwo\xff\0", "line\nbreak \u{1} \"quoted\""),
            ("schl\u{fc}ssel", Some(u128::MAX), b"\n", "x"),
        ] {
            let parked = parked(key, hash, data, error);
            let line = parked.to_line();
            assert_eq!(line.lines().count(), 1, "{line}");
            assert_eq!(DeadLetter::from_line(line.trim_end()), Ok(parked.clone()));
            let carrier = UserRecord { data: parked.to_data(), ..parked.record.clone() };
            assert_eq!(DeadLetter::of(&carrier), Ok(parked));
        }
    }

    #[test]
    fn what_is_no_parked_record_is_refused_with_the_reason() {
        let good = parked("k", None, b"x", "e").to_line();
        for (line, word) in [
            ("", "EOF"),
            ("{\"cut", "EOF"),
            ("[]", "data"),
            (&good.replace("\"sub\":3", "\"sub\":-3"), "sub"),
            (&good.replace("49590", "x"), "sequence"),
            (&good.replace("eA==", "!"), "base64"),
        ] {
            let said = DeadLetter::from_line(line).unwrap_err().to_string();
            assert!(said.contains(word), "{line}: {said}");
        }
        let plain = UserRecord { data: "no JSON".into(), ..parked("k", None, b"", "").record };
        assert!(DeadLetter::of(&plain).is_err());
    }

    #[test]
    fn a_long_error_is_cut_between_letters() {
        let parked = parked("k", None, b"", &"\u{20ac}".repeat(1_000));
        assert_eq!(parked.error.len(), 2_046);
    }
}
