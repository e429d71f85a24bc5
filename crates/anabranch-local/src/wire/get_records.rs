//! Encoding of `GetRecords` replies. Requests are small and decoded by serde.

use super::cbor::{value, write};
use super::{json, records};
use crate::buffer;
use crate::op::get_records::Reply;

/// Bytes of a reply apart from its records: the iterator, and a pair of child shards.
const FRAME_BYTES: usize = 1024;

/// Encodes a reply in JSON.
pub(crate) fn to_json(reply: &Reply) -> Vec<u8> {
    let mut out = buffer::take(FRAME_BYTES + records::json_room(&reply.records));
    out.extend_from_slice(b"{\"Records\":");
    records::write_json(&mut out, &reply.records);
    if let Some(iterator) = &reply.next_iterator {
        out.extend_from_slice(b",\"NextShardIterator\":");
        json::string(&mut out, iterator);
    }
    out.extend_from_slice(b",\"MillisBehindLatest\":");
    json::number(&mut out, reply.millis_behind_latest);
    if !reply.child_shards.is_empty() {
        out.extend_from_slice(b",\"ChildShards\":");
        serde_json::to_writer(&mut out, &reply.child_shards).expect("child shards are JSON");
    }
    out.push(b'}');
    out
}

/// Encodes a reply in CBOR.
pub(crate) fn to_cbor(reply: &Reply) -> Vec<u8> {
    let mut out = buffer::take(FRAME_BYTES + records::cbor_room(&reply.records));
    let optional =
        usize::from(reply.next_iterator.is_some()) + usize::from(!reply.child_shards.is_empty());
    write::map(&mut out, 2 + optional);
    write::text(&mut out, "Records");
    records::write_cbor(&mut out, &reply.records);
    if let Some(iterator) = &reply.next_iterator {
        write::text(&mut out, "NextShardIterator");
        write::text(&mut out, iterator);
    }
    write::text(&mut out, "MillisBehindLatest");
    write::unsigned(&mut out, reply.millis_behind_latest);
    if !reply.child_shards.is_empty() {
        write::text(&mut out, "ChildShards");
        let children = serde_json::to_value(&reply.child_shards).expect("child shards are JSON");
        out.extend_from_slice(&value::to_cbor(&children));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{ChildShard, HashKeyRange};
    use crate::record_batch::{RecordBatch, SequenceBase};
    use crate::segment::Segment;
    use crate::shard_log::LogRecord;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn reply(records: &[(String, Vec<u8>, u64)], ended: bool) -> Reply {
        let mut batch = RecordBatch::default();
        batch.stamp = SequenceBase { high: 490_000_000_000_000_000, low: 3 };
        for (counter, (key, data, arrival_ms)) in records.iter().enumerate() {
            let mut segment = Segment::begin(counter as u64, *arrival_ms, 0, 0);
            let record = LogRecord { partition_key: key, data };
            let slot = segment.slot_for(&record, *arrival_ms).unwrap();
            segment.push(&record, slot);
            batch.push(segment.into(), 0..1);
        }
        let child = ChildShard {
            shard_id: "shardId-000000000004".to_owned(),
            parent_shards: vec!["shardId-000000000003".to_owned()],
            hash_key_range: HashKeyRange {
                starting_hash_key: "0".to_owned(),
                ending_hash_key: "9".to_owned(),
            },
        };
        Reply {
            records: batch,
            next_iterator: (!ended).then(|| "iterator==".to_owned()),
            millis_behind_latest: 17,
            child_shards: if ended { vec![child] } else { Vec::new() },
        }
    }

    #[test]
    fn a_reply_has_the_fields_of_the_service() {
        let records = [("k\"".to_owned(), b"abc".to_vec(), 1_603_152_823_565)];
        let open: Value = serde_json::from_slice(&to_json(&reply(&records, false))).unwrap();
        assert_eq!(
            open,
            json!({
                "Records": [{
                    "SequenceNumber": "49000000000000000000000000000000000000000000000000000003",
                    "ApproximateArrivalTimestamp": 1_603_152_823.565,
                    "Data": "YWJj",
                    "PartitionKey": "k\"",
                }],
                "NextShardIterator": "iterator==",
                "MillisBehindLatest": 17,
            })
        );
        let ended: Value = serde_json::from_slice(&to_json(&reply(&[], true))).unwrap();
        assert_eq!(ended.get("NextShardIterator"), None);
        assert_eq!(ended["ChildShards"][0]["ParentShards"], json!(["shardId-000000000003"]));
    }

    proptest! {
        #[test]
        fn both_encodings_say_the_same_within_the_room_that_was_made(
            records in prop::collection::vec(
                ("[ -!#-\\[\\]-~]{1,40}", any::<Vec<u8>>(), 0..2_000_000_000_000_u64), 0..8,
            ),
            ended: bool,
        ) {
            let reply = reply(&records, ended);
            let (json, cbor) = (to_json(&reply), to_cbor(&reply));
            prop_assert!(json.len() <= FRAME_BYTES + records::json_room(&reply.records));
            prop_assert!(cbor.len() <= FRAME_BYTES + records::cbor_room(&reply.records));
            let json: Value = serde_json::from_slice(&json).unwrap();
            prop_assert_eq!(value::from_cbor(&cbor), Ok(json));
        }
    }
}
