//! The records of a `GetRecords` reply, read as what they become and not as the SDK's own.
//!
//! The SDK makes a text of each number and key, and a structure of each record, all of which would
//! be taken apart again at once: more than half of what a small record costs. So whoever asks for
//! records puts out a basket, and the decoder of the reply lays them in. What is read in JSON goes
//! the SDK's way.

use super::wire_format::WireFormatState;
use anabranch_model::cbor::{CborCursor, MalformedCbor};
use anabranch_model::record::{PartitionKey, Record};
use anabranch_model::sequence::SequenceNumber;
use aws_smithy_schema::serde::SerdeError;
use bytes::Bytes;
use std::borrow::Cow;
use std::cell::RefCell;
use std::future::Future;

/// The least bytes that a record takes in CBOR, to reserve by: its number, and three names.
const RECORD_MIN_BYTES: usize = 64;

tokio::task_local! {
    /// Where the records of the reply go that this task waits for.
    static BASKET: RefCell<Option<Vec<Record>>>;
}

/// Waits for a reply, and gives with it the records that were read from it this way: `None` if its
/// decoder went the SDK's way.
pub(in crate::stream) async fn with_captured_records<T, E>(
    reply: impl Future<Output = Result<T, E>>,
) -> Result<(T, Option<Vec<Record>>), E> {
    let reply = async { reply.await.map(|reply| (reply, BASKET.with(RefCell::take))) };
    BASKET.scope(RefCell::new(None), reply).await
}

/// Whether somebody waits for records.
pub(super) fn is_wanted() -> bool {
    BASKET.try_with(|_| ()).is_ok()
}

/// Gives records to who waits for them.
pub(super) fn capture(records: Vec<Record>) {
    // Who no longer waits has no use for them.
    let _ = BASKET.try_with(|basket| basket.replace(Some(records)));
}

/// Reads the list of records that stands here in `body`, which `cursor` goes over.
pub(super) fn read(
    cursor: &mut CborCursor<'_>,
    body: &Bytes,
    spoken: &WireFormatState,
) -> Result<Vec<Record>, SerdeError> {
    let mut items = cursor.array().map_err(invalid)?;
    let left = body.len().saturating_sub(cursor.position());
    let mut records = Vec::with_capacity(items.hint(left / RECORD_MIN_BYTES));
    while cursor.more(&mut items).map_err(invalid)? {
        records.push(record(cursor, body, spoken)?);
    }
    Ok(records)
}

fn record(
    cursor: &mut CborCursor<'_>,
    body: &Bytes,
    spoken: &WireFormatState,
) -> Result<Record, SerdeError> {
    let (mut sequence, mut partition_key, mut arrival_ms) = (None, None, 0);
    let mut data = Bytes::new();
    let mut members = cursor.map().map_err(invalid)?;
    while cursor.more(&mut members).map_err(invalid)? {
        let name = cursor.text_bytes().map_err(invalid)?;
        if cursor.is_at_null() {
            cursor.skip().map_err(invalid)?;
            continue;
        }
        match &*name {
            b"SequenceNumber" => {
                let digits = cursor.text_bytes().map_err(invalid)?;
                sequence = SequenceNumber::from_digits(&digits);
            }
            b"PartitionKey" => partition_key = Some(key(cursor, body)?),
            b"Data" => data = blob(cursor, body, spoken)?,
            b"ApproximateArrivalTimestamp" => {
                arrival_ms = u64::try_from(cursor.time_ms().map_err(invalid)?).unwrap_or(0);
            }
            _ => cursor.skip().map_err(invalid)?,
        }
    }
    let sequence = sequence.ok_or_else(|| {
        SerdeError::invalid_input("a record without a sequence number that is one")
    })?;
    let partition_key = partition_key.unwrap_or_else(|| PartitionKey::from(""));
    Ok(Record { sequence, partition_key, data, arrival_ms })
}

fn key(cursor: &mut CborCursor<'_>, body: &Bytes) -> Result<PartitionKey, SerdeError> {
    let key = match cursor.text_bytes().map_err(invalid)? {
        Cow::Borrowed(text) => {
            let end = cursor.position();
            PartitionKey::of_slice(body, end - text.len()..end)
        }
        Cow::Owned(text) => PartitionKey::from_utf8(text.into()),
    };
    key.map_err(|_| SerdeError::invalid_input("a partition key that is not UTF-8"))
}

/// A byte string of the body, which shares the body's memory where it can.
pub(super) fn blob(
    cursor: &mut CborCursor<'_>,
    body: &Bytes,
    spoken: &WireFormatState,
) -> Result<Bytes, SerdeError> {
    let blob = cursor.blob().map_err(|_| {
        spoken.mark_unsupported("it sends record data that are not a byte string");
        SerdeError::type_mismatch("record data that are not a byte string")
    })?;
    Ok(match blob {
        Cow::Borrowed(data) => {
            let end = cursor.position();
            body.slice(end - data.len()..end)
        }
        Cow::Owned(data) => data.into(),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function of an error")]
pub(super) fn invalid(malformed: MalformedCbor) -> SerdeError {
    SerdeError::invalid_input(malformed.0)
}
