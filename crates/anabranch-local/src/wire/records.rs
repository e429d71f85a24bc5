//! Encoding of a list of records, in a `GetRecords` reply or an event of a subscription.

use crate::record_batch::RecordBatch;
use crate::wire::cbor::write;
use crate::wire::json;
use crate::wire::record_head::RecordHead;

/// Bytes of JSON around one record's key and data, including the sequence number.
const JSON_FRAME_BYTES: usize = 170;
/// Bytes of CBOR around one record's key and data.
const CBOR_FRAME_BYTES: usize = 150;

/// Returns an upper bound of the list's size as JSON, in bytes, if no key needs escapes.
pub(crate) fn json_room(records: &RecordBatch) -> usize {
    records.len() * JSON_FRAME_BYTES + records.bytes() * 4 / 3
}

/// Returns an upper bound of the list's size as CBOR, in bytes.
pub(crate) fn cbor_room(records: &RecordBatch) -> usize {
    records.len() * CBOR_FRAME_BYTES + records.bytes()
}

/// Encodes the list as JSON.
pub(crate) fn write_json(out: &mut Vec<u8>, records: &RecordBatch) {
    out.push(b'[');
    let mut head = RecordHead::json(records.stamp);
    let mut first = true;
    for run in records.runs() {
        for record in run.stored() {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            head.write(out, record.counter, record.arrival_ms);
            base64_simd::STANDARD.encode_append(record.data, out);
            out.extend_from_slice(b"\",\"PartitionKey\":\"");
            if record.key_escapes {
                json::escaped(out, record.key);
            } else {
                out.extend_from_slice(record.key);
            }
            out.extend_from_slice(b"\"}");
        }
    }
    out.push(b']');
}

/// Encodes the list as CBOR.
pub(crate) fn write_cbor(out: &mut Vec<u8>, records: &RecordBatch) {
    write::array(out, records.len());
    let mut head = RecordHead::cbor(records.stamp);
    for run in records.runs() {
        for record in run.stored() {
            head.write(out, record.counter, record.arrival_ms);
            write::blob(out, record.data);
            write::text(out, "PartitionKey");
            write::utf8(out, record.key);
        }
    }
}
