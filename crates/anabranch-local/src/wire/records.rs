//! The list of records in a `GetRecords` reply and in an event of a subscription.

use crate::record_batch::RecordBatch;
use crate::wire::cbor::write;
use crate::wire::json;
use crate::wire::sequence_text::SequenceText;

/// Bytes of JSON around one record's key and data, sequence number included.
const JSON_FRAME_BYTES: usize = 170;
/// Bytes of CBOR around one record's key and data.
const CBOR_FRAME_BYTES: usize = 150;

/// Room that the list takes at most, as JSON (unless keys need escapes).
pub(crate) fn json_room(records: &RecordBatch) -> usize {
    records.len() * JSON_FRAME_BYTES + records.bytes() * 4 / 3
}

/// Room that the list takes at most, as CBOR.
pub(crate) fn cbor_room(records: &RecordBatch) -> usize {
    records.len() * CBOR_FRAME_BYTES + records.bytes()
}

/// Writes the list as JSON.
pub(crate) fn write_json(out: &mut Vec<u8>, records: &RecordBatch) {
    out.push(b'[');
    // Records come in runs of one arrival time, so its digits are written once for each run.
    let (mut arrival_ms, mut arrival) = (0, Vec::new());
    let mut sequence = SequenceText::default();
    for (index, record) in records.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"SequenceNumber\":\"");
        out.extend_from_slice(sequence.of(record.sequence));
        out.extend_from_slice(b"\",\"ApproximateArrivalTimestamp\":");
        if arrival.is_empty() || arrival_ms != record.arrival_ms {
            arrival.clear();
            arrival_ms = record.arrival_ms;
            json::time(&mut arrival, arrival_ms);
        }
        out.extend_from_slice(&arrival);
        out.extend_from_slice(b",\"Data\":\"");
        base64_simd::STANDARD.encode_append(record.data, out);
        out.extend_from_slice(b"\",\"PartitionKey\":");
        json::string(out, record.partition_key);
        out.push(b'}');
    }
    out.push(b']');
}

/// Writes the list as CBOR.
pub(crate) fn write_cbor(out: &mut Vec<u8>, records: &RecordBatch) {
    write::array(out, records.len());
    let mut sequence = SequenceText::default();
    for record in records.iter() {
        write::map(out, 4);
        write::text(out, "SequenceNumber");
        write::ascii(out, sequence.of(record.sequence));
        write::text(out, "ApproximateArrivalTimestamp");
        write::time(out, i64::try_from(record.arrival_ms).unwrap_or(i64::MAX));
        write::text(out, "Data");
        write::blob(out, record.data);
        write::text(out, "PartitionKey");
        write::text(out, record.partition_key);
    }
}
