//! A `GetRecords` reply on the wire. Requests are small and read by serde.

use super::cbor::{value, write};
use super::{json, records};
use crate::op::get_records::Reply;

/// Bytes of a reply beside its records: the iterator, and a pair of child shards.
const FRAME_BYTES: usize = 1024;

/// Writes a reply in JSON.
pub(crate) fn to_json(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_BYTES + records::json_room(&reply.records));
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

/// Writes a reply in CBOR.
pub(crate) fn to_cbor(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_BYTES + records::cbor_room(&reply.records));
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
