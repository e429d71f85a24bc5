//! JSON envelope of a row in the stream: the event's id beside its data.

use crate::read::{OutboxRow, RowId};
use bytes::Bytes;
use serde_json::Value;

/// A row as read from the stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// Event id, the same each time the row is sent.
    pub id: String,
    /// Value of the column `headers`, or null.
    pub headers: Value,
    /// Creation time of the row, in microseconds since 1970.
    pub created_us: Option<i64>,
    /// Event data.
    pub data: Bytes,
}

/// Error for a stream record that is not an envelope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record is not an outbox envelope: {0}")]
pub struct NotAnEnvelope(String);

impl Envelope {
    /// Parses a record as an envelope.
    pub fn read(record: &[u8]) -> Result<Self, NotAnEnvelope> {
        let wrong = |what: &str| NotAnEnvelope(what.to_owned());
        let value: Value =
            serde_json::from_slice(record).map_err(|error| NotAnEnvelope(error.to_string()))?;
        let Value::Object(mut fields) = value else { return Err(wrong("it is not a JSON object")) };
        let Some(Value::String(id)) = fields.remove("id") else {
            return Err(wrong("it has no string \"id\""));
        };
        let data = match (fields.remove("data"), fields.remove("data_base64")) {
            (Some(Value::String(text)), None) => Bytes::from(text),
            (None, Some(Value::String(text))) => base64_simd::STANDARD
                .decode_to_vec(text)
                .map_err(|error| NotAnEnvelope(format!("\"data_base64\": {error}")))?
                .into(),
            _ => return Err(wrong("it needs a string \"data\" or \"data_base64\"")),
        };
        let created_us = fields.get("created_us").and_then(Value::as_i64);
        let headers = fields.remove("headers").unwrap_or(Value::Null);
        Ok(Self { id, headers, created_us, data })
    }
}

/// Returns the event id: the table's own, or else one derived from row, transaction and time.
/// Including all three makes an id that a restored server assigns again a different event.
pub(crate) fn event_id(row: &OutboxRow) -> String {
    if let Some(own) = &row.event_id {
        return own.clone();
    }
    let RowId { id, transaction } = row.name;
    let (transaction, created) = (transaction.unwrap_or(0), row.created_us.unwrap_or(0));
    format!("{id}-{transaction:x}-{created:x}")
}

/// Encodes the row as an envelope.
pub(crate) fn write(row: &OutboxRow) -> Vec<u8> {
    let mut out = Vec::with_capacity(row.data.len() + 96);
    out.extend_from_slice(b"{\"id\":");
    text(&mut out, &event_id(row));
    if let Some(created) = row.created_us {
        out.extend_from_slice(format!(",\"created_us\":{created}").as_bytes());
    }
    if let Some(headers) = &row.headers {
        out.extend_from_slice(b",\"headers\":");
        // A column of type text may hold invalid JSON.
        match serde_json::from_str::<Value>(headers) {
            Ok(_) => out.extend_from_slice(headers.as_bytes()),
            Err(_) => text(&mut out, headers),
        }
    }
    if let Ok(data) = std::str::from_utf8(&row.data) {
        out.extend_from_slice(b",\"data\":");
        text(&mut out, data);
    } else {
        out.extend_from_slice(b",\"data_base64\":\"");
        out.extend_from_slice(base64_simd::STANDARD.encode_to_string(&row.data).as_bytes());
        out.push(b'"');
    }
    out.push(b'}');
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text can always be written to memory");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(data: &[u8], headers: Option<&str>) -> OutboxRow {
        OutboxRow {
            name: RowId { id: 7, transaction: Some(0x1f) },
            key: "k".to_owned(),
            hash: None,
            data: Bytes::copy_from_slice(data),
            data_bytes: 0,
            headers: headers.map(str::to_owned),
            headers_bytes: 0,
            created_us: Some(255),
            event_id: None,
        }
    }

    #[test]
    fn an_envelope_is_read_as_it_was_written() {
        for data in [&b"{\"a\": \"\\n\"}"[..], b"", b"\x00\xff\xfe", "ümlaut \u{1F40B}".as_bytes()]
        {
            let envelope = Envelope::read(&write(&row(data, Some("{\"a\": [1]}")))).unwrap();
            assert_eq!(envelope.data, data);
            assert_eq!(envelope.headers["a"][0], 1);
            assert_eq!((envelope.id.as_str(), envelope.created_us), ("7-1f-ff", Some(255)));
        }
        let plain = Envelope::read(&write(&row(b"x", Some("no json")))).unwrap();
        assert_eq!(plain.headers, "no json");
    }

    #[test]
    fn the_same_row_has_the_same_id_and_a_row_of_a_reused_id_another() {
        let first = row(b"x", None);
        let mut reused = first.clone();
        reused.created_us = Some(256);
        assert_eq!(event_id(&first), event_id(&first.clone()));
        assert_ne!(event_id(&first), event_id(&reused));
        let own = OutboxRow { event_id: Some("mine".to_owned()), ..first };
        assert_eq!(event_id(&own), "mine");
    }

    #[test]
    fn what_is_no_envelope_is_refused_by_name() {
        for (text, word) in [
            ("", "EOF"),
            ("[]", "object"),
            ("{}", "id"),
            ("{\"id\":\"1\"}", "data"),
            ("{\"id\":\"1\",\"data_base64\":\"?\"}", "data_base64"),
        ] {
            let error = Envelope::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
