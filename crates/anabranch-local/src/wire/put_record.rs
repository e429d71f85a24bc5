//! Encoding of `PutRecord`. The key and the payload borrow from the request's body.

use serde::Deserialize;

use super::cbor::{CborCursor, MalformedCbor, write};
use super::json::{self, BorrowedText};
use super::{absent, payload, read_json, unreadable};
use crate::encryption::Encryption;
use crate::engine::StreamRef;
use crate::error::ApiError;
use crate::op::put_record::{Reply, Request};
use crate::op::put_records::{Payload, PutRecordsEntry};

/// The decoded fields of a request, in either encoding.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct PutRecordFields<'a> {
    #[serde(borrow)]
    stream_name: Option<BorrowedText<'a>>,
    #[serde(borrow, rename = "StreamARN")]
    stream_arn: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    data: Option<BorrowedText<'a>>,
    /// The payload of a CBOR request.
    #[serde(skip)]
    blob: Option<Payload<'a>>,
    #[serde(borrow)]
    partition_key: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    explicit_hash_key: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    sequence_number_for_ordering: Option<BorrowedText<'a>>,
}

impl<'a> PutRecordFields<'a> {
    fn request(self) -> Result<Request<'a>, ApiError> {
        let data = self.blob.or(self.data.map(|BorrowedText(data)| Payload::Base64(data)));
        let BorrowedText(partition_key) =
            self.partition_key.ok_or_else(|| absent("partitionKey"))?;
        Ok(Request {
            stream: StreamRef {
                name: self.stream_name.map(|BorrowedText(name)| name),
                arn: self.stream_arn.map(|BorrowedText(arn)| arn),
            },
            entry: PutRecordsEntry {
                partition_key,
                explicit_hash_key: self.explicit_hash_key.map(|BorrowedText(hash)| hash),
                data: data.ok_or_else(|| absent("data"))?,
            },
            sequence_number_for_ordering: self
                .sequence_number_for_ordering
                .map(|BorrowedText(s)| s),
        })
    }
}

/// Decodes a request in JSON.
pub(crate) fn from_json(body: &[u8]) -> Result<Request<'_>, ApiError> {
    read_json::<PutRecordFields<'_>>(body)?.request()
}

/// Decodes a request in CBOR.
pub(crate) fn from_cbor(body: &[u8]) -> Result<Request<'_>, ApiError> {
    cbor_fields(body).map_err(unreadable)?.request()
}

fn cbor_fields(body: &[u8]) -> Result<PutRecordFields<'_>, MalformedCbor> {
    let mut cursor = CborCursor::new(body);
    let mut found = PutRecordFields::default();
    let mut fields = cursor.map()?;
    while cursor.more(&mut fields)? {
        let field = cursor.text()?;
        let place = match &*field {
            "StreamName" => &mut found.stream_name,
            "StreamARN" => &mut found.stream_arn,
            "PartitionKey" => &mut found.partition_key,
            "ExplicitHashKey" => &mut found.explicit_hash_key,
            "SequenceNumberForOrdering" => &mut found.sequence_number_for_ordering,
            "Data" => {
                if !cursor.null()? {
                    found.blob = Some(payload(cursor.blob()?));
                }
                continue;
            }
            _ => {
                cursor.skip()?;
                continue;
            }
        };
        *place = cursor.optional_text()?.map(BorrowedText);
    }
    cursor.finish()?;
    Ok(found)
}

/// Encodes a reply in JSON.
pub(crate) fn to_json(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    out.extend_from_slice(b"{\"SequenceNumber\":\"");
    reply.sequence.write_digits(&mut out);
    out.extend_from_slice(b"\",\"ShardId\":\"");
    json::shard_id(&mut out, reply.shard);
    out.push(b'"');
    if reply.encryption == Encryption::Kms {
        out.extend_from_slice(b",\"EncryptionType\":\"KMS\"");
    }
    out.push(b'}');
    out
}

/// Encodes a reply in CBOR.
pub(crate) fn to_cbor(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    write::map(&mut out, if reply.encryption == Encryption::Kms { 3 } else { 2 });
    write::text(&mut out, "SequenceNumber");
    write::text(&mut out, &reply.sequence.to_string());
    write::text(&mut out, "ShardId");
    let mut id = Vec::with_capacity(20);
    json::shard_id(&mut id, reply.shard);
    write::utf8(&mut out, &id);
    if reply.encryption == Encryption::Kms {
        write::text(&mut out, "EncryptionType");
        write::text(&mut out, "KMS");
    }
    out
}
