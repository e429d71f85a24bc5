//! Decodes the records of a `GetRecords` reply directly into the library's own type.
//!
//! The SDK builds a string for each number and key and a structure for each record, all of which
//! would be converted again at once. That is more than half of the cost of a small record. A caller
//! of `GetRecords` therefore sets up a task-local slot, and the decoder stores the records there.
//! JSON replies are decoded by the SDK.

use super::wire_format::WireFormatState;
use anabranch_model::cbor::{CborCursor, MalformedCbor};
use anabranch_model::record::{PartitionKey, Record};
use anabranch_model::sequence::SequenceNumber;
use aws_smithy_schema::serde::SerdeError;
use bytes::Bytes;
use std::borrow::Cow;
use std::cell::RefCell;
use std::future::Future;

/// Minimum size of a record in CBOR, its sequence number and three member names. Limits how much
/// memory is reserved.
const RECORD_MIN_BYTES: usize = 64;

tokio::task_local! {
    /// Slot for the captured records of the reply that this task waits for.
    static BASKET: RefCell<Option<Vec<Record>>>;
}

/// Waits for a reply. Returns it with the captured records, or with `None` if its decoder did not
/// capture them.
pub(in crate::stream) async fn with_captured_records<T, E>(
    reply: impl Future<Output = Result<T, E>>,
) -> Result<(T, Option<Vec<Record>>), E> {
    let reply = async { reply.await.map(|reply| (reply, BASKET.with(RefCell::take))) };
    BASKET.scope(RefCell::new(None), reply).await
}

/// Returns true if the current task captures records.
pub(super) fn is_wanted() -> bool {
    BASKET.try_with(|_| ()).is_ok()
}

/// Stores the records for the waiting task.
pub(super) fn capture(records: Vec<Record>) {
    // Without a slot, the task no longer waits for them.
    let _ = BASKET.try_with(|basket| basket.replace(Some(records)));
}

/// Decodes the list of records at `cursor`, which reads `body`.
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
    let sequence = sequence
        .ok_or_else(|| SerdeError::invalid_input("a record without a valid sequence number"))?;
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

/// Reads a byte string. Shares the memory of `body` where possible.
pub(super) fn blob(
    cursor: &mut CborCursor<'_>,
    body: &Bytes,
    spoken: &WireFormatState,
) -> Result<Bytes, SerdeError> {
    let blob = cursor.blob().map_err(|_| {
        spoken.mark_unsupported("its record data is not a byte string");
        SerdeError::type_mismatch("record data that is not a byte string")
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
