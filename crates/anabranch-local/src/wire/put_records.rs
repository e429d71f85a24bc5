//! Encoding of `PutRecords`. Keys and payloads borrow from the request's body.

use std::borrow::Cow;

use serde::Deserialize;

use super::cbor::{CborCursor, MalformedCbor, write};
use super::json::{self, BorrowedText};
use super::{absent, payload, read_json, unreadable};
use crate::encryption::Encryption;
use crate::engine::StreamRef;
use crate::error::ApiError;
use crate::op::put_records::{EntryOutcome, Payload, PutRecordsEntry, Reply, Request};
use anabranch_model::limits::PUT_RECORDS_MAX_RECORDS;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JsonRequest<'a> {
    #[serde(borrow)]
    stream_name: Option<BorrowedText<'a>>,
    #[serde(borrow, rename = "StreamARN")]
    stream_arn: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    records: Option<Vec<JsonEntry<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JsonEntry<'a> {
    #[serde(borrow)]
    data: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    partition_key: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    explicit_hash_key: Option<BorrowedText<'a>>,
}

/// Decodes a request in JSON.
pub(crate) fn from_json(body: &[u8]) -> Result<Request<'_>, ApiError> {
    let request: JsonRequest<'_> = read_json(body)?;
    let stream = StreamRef {
        name: request.stream_name.map(|BorrowedText(name)| name),
        arn: request.stream_arn.map(|BorrowedText(arn)| arn),
    };
    let records = request.records.ok_or_else(|| absent("records"))?;
    let records = records.into_iter().enumerate().map(|(index, record)| {
        entry(
            index,
            record.partition_key.map(|BorrowedText(key)| key),
            record.explicit_hash_key.map(|BorrowedText(hash)| hash),
            record.data.map(|BorrowedText(data)| Payload::Base64(data)),
        )
    });
    Ok(Request { stream, records: records.collect::<Result<_, _>>()? })
}

fn entry<'a>(
    index: usize,
    partition_key: Option<Cow<'a, str>>,
    explicit_hash_key: Option<Cow<'a, str>>,
    data: Option<Payload<'a>>,
) -> Result<PutRecordsEntry<'a>, ApiError> {
    let absent = |field| absent(&format!("records.{}.member.{field}", index + 1));
    let partition_key = partition_key.ok_or_else(|| absent("partitionKey"))?;
    let data = data.ok_or_else(|| absent("data"))?;
    Ok(PutRecordsEntry { partition_key, explicit_hash_key, data })
}

/// Decodes a request in CBOR.
pub(crate) fn from_cbor(body: &[u8]) -> Result<Request<'_>, ApiError> {
    let mut cursor = CborCursor::new(body);
    let (mut stream, mut records) = (StreamRef { name: None, arn: None }, None);
    let mut fields = cursor.map().map_err(unreadable)?;
    while cursor.more(&mut fields).map_err(unreadable)? {
        match &*cursor.text().map_err(unreadable)? {
            "StreamName" => stream.name = cursor.optional_text().map_err(unreadable)?,
            "StreamARN" => stream.arn = cursor.optional_text().map_err(unreadable)?,
            "Records" if cursor.null().map_err(unreadable)? => {}
            "Records" => records = Some(cbor_entries(&mut cursor)?),
            _ => cursor.skip().map_err(unreadable)?,
        }
    }
    cursor.finish().map_err(unreadable)?;
    Ok(Request { stream, records: records.ok_or_else(|| absent("records"))? })
}

fn cbor_entries<'a>(cursor: &mut CborCursor<'a>) -> Result<Vec<PutRecordsEntry<'a>>, ApiError> {
    let mut items = cursor.array().map_err(unreadable)?;
    let mut records = Vec::with_capacity(items.hint(PUT_RECORDS_MAX_RECORDS));
    while cursor.more(&mut items).map_err(unreadable)? {
        let (key, hash, data) = cbor_entry(cursor).map_err(unreadable)?;
        records.push(entry(records.len(), key, hash, data)?);
    }
    Ok(records)
}

type CborEntry<'a> = (Option<Cow<'a, str>>, Option<Cow<'a, str>>, Option<Payload<'a>>);

fn cbor_entry<'a>(cursor: &mut CborCursor<'a>) -> Result<CborEntry<'a>, MalformedCbor> {
    let (mut key, mut hash, mut data) = (None, None, None);
    let mut fields = cursor.map()?;
    while cursor.more(&mut fields)? {
        match &*cursor.text()? {
            "Data" if cursor.null()? => {}
            "Data" => data = Some(payload(cursor.blob()?)),
            "PartitionKey" => key = cursor.optional_text()?,
            "ExplicitHashKey" => hash = cursor.optional_text()?,
            _ => cursor.skip()?,
        }
    }
    Ok((key, hash, data))
}

/// Approximate bytes of one entry of a reply, in either encoding.
const ENTRY_BYTES: usize = 128;

/// Encodes a reply in JSON.
pub(crate) fn to_json(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + reply.entries.len() * ENTRY_BYTES);
    out.extend_from_slice(b"{\"FailedRecordCount\":");
    json::number(&mut out, reply.failed as u64);
    out.extend_from_slice(b",\"Records\":[");
    for (index, entry) in reply.entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match entry {
            EntryOutcome::Placed { shard, sequence } => {
                out.extend_from_slice(b"{\"SequenceNumber\":\"");
                sequence.write_digits(&mut out);
                out.extend_from_slice(b"\",\"ShardId\":\"");
                json::shard_id(&mut out, *shard);
                out.extend_from_slice(b"\"}");
            }
            EntryOutcome::Failed { code, message } => {
                out.extend_from_slice(b"{\"ErrorCode\":");
                json::string(&mut out, code.name());
                out.extend_from_slice(b",\"ErrorMessage\":");
                json::string(&mut out, message);
                out.push(b'}');
            }
        }
    }
    out.push(b']');
    if reply.encryption == Encryption::Kms {
        out.extend_from_slice(b",\"EncryptionType\":\"KMS\"");
    }
    out.push(b'}');
    out
}

/// Encodes a reply in CBOR.
pub(crate) fn to_cbor(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + reply.entries.len() * ENTRY_BYTES);
    write::map(&mut out, if reply.encryption == Encryption::Kms { 3 } else { 2 });
    write::text(&mut out, "FailedRecordCount");
    write::unsigned(&mut out, reply.failed as u64);
    write::text(&mut out, "Records");
    write::array(&mut out, reply.entries.len());
    let mut digits = Vec::new();
    for entry in &reply.entries {
        write::map(&mut out, 2);
        match entry {
            EntryOutcome::Placed { shard, sequence } => {
                write::text(&mut out, "SequenceNumber");
                digits.clear();
                sequence.write_digits(&mut digits);
                write::utf8(&mut out, &digits);
                write::text(&mut out, "ShardId");
                digits.clear();
                json::shard_id(&mut digits, *shard);
                write::utf8(&mut out, &digits);
            }
            EntryOutcome::Failed { code, message } => {
                write::text(&mut out, "ErrorCode");
                write::text(&mut out, code.name());
                write::text(&mut out, "ErrorMessage");
                write::text(&mut out, message);
            }
        }
    }
    if reply.encryption == Encryption::Kms {
        write::text(&mut out, "EncryptionType");
        write::text(&mut out, "KMS");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::cbor::value;
    use super::*;
    use crate::error::ErrorKind;
    use anabranch_model::sequence::SequenceNumber;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Returns the key, hash key and data of an entry, in any encoding.
    fn read(entry: &PutRecordsEntry<'_>) -> (String, Option<String>, Vec<u8>) {
        let data = match &entry.data {
            Payload::Raw(bytes) => bytes.to_vec(),
            Payload::Base64(text) => base64_simd::STANDARD.decode_to_vec(&**text).unwrap(),
        };
        let hash = entry.explicit_hash_key.as_deref().map(str::to_owned);
        (entry.partition_key.as_ref().to_owned(), hash, data)
    }

    fn request_in_cbor(stream: &str, records: &[(String, Option<String>, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        write::map(&mut out, 2);
        write::text(&mut out, "Records");
        write::array(&mut out, records.len());
        for (key, hash, data) in records {
            write::map(&mut out, 2 + usize::from(hash.is_some()));
            write::text(&mut out, "Data");
            write::blob(&mut out, data);
            write::text(&mut out, "PartitionKey");
            write::text(&mut out, key);
            if let Some(hash) = hash {
                write::text(&mut out, "ExplicitHashKey");
                write::text(&mut out, hash);
            }
        }
        write::text(&mut out, "StreamName");
        write::text(&mut out, stream);
        out
    }

    #[test]
    fn plain_json_is_borrowed_and_unknown_fields_are_passed_over() {
        let body = br#"{"New":{"a":[1]},"StreamName":"s","StreamId":null,
            "Records":[{"Data":"eA==","PartitionKey":"k","More":7,"ExplicitHashKey":null}]}"#;
        let request = from_json(body).unwrap();
        let entry = &request.records[0];
        assert!(matches!(entry.partition_key, Cow::Borrowed("k")));
        assert!(matches!(entry.data, Payload::Base64(Cow::Borrowed("eA=="))));
        assert!(entry.explicit_hash_key.is_none());
    }

    #[test]
    fn what_is_missing_is_named_by_its_place() {
        let absent = |field: &str| format!("Value null at '{field}' failed to satisfy");
        for (body, field) in [
            (r#"{"StreamName":"s"}"#, "records"),
            (r#"{"Records":[{"PartitionKey":"k"}]}"#, "records.1.member.data"),
            (
                r#"{"Records":[{"PartitionKey":"k","Data":""},{"Data":""}]}"#,
                "records.2.member.partitionKey",
            ),
        ] {
            let error = from_json(body.as_bytes()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Validation, "{body}");
            assert!(error.message.contains(&absent(field)), "{body}: {}", error.message);
        }
    }

    #[test]
    fn a_blob_in_chunks_is_put_together() {
        let body = b"\xa1\x67Records\x81\xa2\x64Data\x5f\x41a\x42bc\xff\x6cPartitionKey\x61k";
        let request = from_cbor(body).unwrap();
        assert_eq!(read(&request.records[0]).2, b"abc");
    }

    #[test]
    fn replies_are_the_same_in_both_encodings() {
        let sequence: SequenceNumber =
            "49590338271490256608559692538361571095921575989136588898".parse().unwrap();
        let reply = Reply {
            entries: vec![
                EntryOutcome::Placed { shard: 12, sequence },
                EntryOutcome::Failed {
                    code: ErrorKind::ProvisionedThroughputExceeded,
                    message: "Rate \"exceeded\"".to_owned(),
                },
            ],
            failed: 1,
            encryption: Encryption::Kms,
        };
        let json: Value = serde_json::from_slice(&to_json(&reply)).unwrap();
        assert_eq!(
            json,
            json!({
                "FailedRecordCount": 1,
                "EncryptionType": "KMS",
                "Records": [
                    {"SequenceNumber": sequence.to_string(), "ShardId": "shardId-000000000012"},
                    {
                        "ErrorCode": "ProvisionedThroughputExceededException",
                        "ErrorMessage": "Rate \"exceeded\"",
                    },
                ],
            })
        );
        assert_eq!(value::from_cbor(&to_cbor(&reply)), Ok(json));
    }

    proptest! {
        #[test]
        fn both_encodings_carry_the_same_request(
            records in prop::collection::vec(
                (any::<String>(), prop::option::of("[0-9]{1,39}"), any::<Vec<u8>>()), 0..8,
            ),
        ) {
            let entries: Vec<_> = records
                .iter()
                .map(|(key, hash, data)| json!({
                    "PartitionKey": key,
                    "ExplicitHashKey": hash,
                    "Data": base64_simd::STANDARD.encode_to_string(data),
                }))
                .collect();
            let json = json!({"StreamName": "s\"", "Records": entries}).to_string();
            let cbor = request_in_cbor("s\"", &records);
            for request in [from_json(json.as_bytes()).unwrap(), from_cbor(&cbor).unwrap()] {
                prop_assert_eq!(request.stream.name.as_deref(), Some("s\""));
                let got: Vec<_> = request.records.iter().map(read).collect();
                prop_assert_eq!(&got, &records);
            }
        }

        #[test]
        fn no_damage_to_a_request_makes_it_panic(
            at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
        ) {
            let mut body = request_in_cbor("s", &vec![("key".into(), None, vec![7; 30]); 4]);
            let place = at.index(body.len());
            body[place] = byte;
            let _ = from_cbor(&body);
            let _ = from_json(&body);
            body.truncate(cut.index(body.len()));
            let _ = from_cbor(&body);
        }
    }
}
