//! `PutRecords` on the wire. Keys and payloads borrow from the request's body.

use std::borrow::Cow;

use serde::Deserialize;

use super::cbor::{Cursor, Malformed, write};
use super::json::{self, Text};
use super::{absent, payload, read_json, unreadable};
use crate::encryption::Encryption;
use crate::engine::StreamRef;
use crate::error::ApiError;
use crate::op::put_records::{Entry, EntryOutcome, Payload, Reply, Request};
use anabranch_model::limits::PUT_RECORDS_MAX_RECORDS;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JsonRequest<'a> {
    #[serde(borrow)]
    stream_name: Option<Text<'a>>,
    #[serde(borrow, rename = "StreamARN")]
    stream_arn: Option<Text<'a>>,
    #[serde(borrow)]
    records: Option<Vec<JsonEntry<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JsonEntry<'a> {
    #[serde(borrow)]
    data: Option<Text<'a>>,
    #[serde(borrow)]
    partition_key: Option<Text<'a>>,
    #[serde(borrow)]
    explicit_hash_key: Option<Text<'a>>,
}

/// Reads a request in JSON.
pub(crate) fn from_json(body: &[u8]) -> Result<Request<'_>, ApiError> {
    let request: JsonRequest<'_> = read_json(body)?;
    let stream = StreamRef {
        name: request.stream_name.map(|Text(name)| name),
        arn: request.stream_arn.map(|Text(arn)| arn),
    };
    let records = request.records.ok_or_else(|| absent("records"))?;
    let records = records.into_iter().enumerate().map(|(index, record)| {
        entry(
            index,
            record.partition_key.map(|Text(key)| key),
            record.explicit_hash_key.map(|Text(hash)| hash),
            record.data.map(|Text(data)| Payload::Base64(data)),
        )
    });
    Ok(Request { stream, records: records.collect::<Result<_, _>>()? })
}

fn entry<'a>(
    index: usize,
    partition_key: Option<Cow<'a, str>>,
    explicit_hash_key: Option<Cow<'a, str>>,
    data: Option<Payload<'a>>,
) -> Result<Entry<'a>, ApiError> {
    let absent = |field| absent(&format!("records.{}.member.{field}", index + 1));
    let partition_key = partition_key.ok_or_else(|| absent("partitionKey"))?;
    let data = data.ok_or_else(|| absent("data"))?;
    Ok(Entry { partition_key, explicit_hash_key, data })
}

/// Reads a request in CBOR.
pub(crate) fn from_cbor(body: &[u8]) -> Result<Request<'_>, ApiError> {
    let mut cursor = Cursor::new(body);
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

fn cbor_entries<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Entry<'a>>, ApiError> {
    let mut items = cursor.array().map_err(unreadable)?;
    let mut records = Vec::with_capacity(items.hint(PUT_RECORDS_MAX_RECORDS));
    while cursor.more(&mut items).map_err(unreadable)? {
        let (key, hash, data) = cbor_entry(cursor).map_err(unreadable)?;
        records.push(entry(records.len(), key, hash, data)?);
    }
    Ok(records)
}

type CborEntry<'a> = (Option<Cow<'a, str>>, Option<Cow<'a, str>>, Option<Payload<'a>>);

fn cbor_entry<'a>(cursor: &mut Cursor<'a>) -> Result<CborEntry<'a>, Malformed> {
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

/// Bytes of one entry of a reply, in either encoding.
const ENTRY_BYTES: usize = 128;

/// Writes a reply in JSON.
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

/// Writes a reply in CBOR.
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
                write::ascii(&mut out, &digits);
                write::text(&mut out, "ShardId");
                digits.clear();
                json::shard_id(&mut digits, *shard);
                write::ascii(&mut out, &digits);
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
