//! Keys of the rows of the native layout.
//!
//! | partition `pk` | sort key `sk` | row |
//! |---|---|---|
//! | `app` | `format` | the table's format, and the oldest that may use it (`min_reader`) |
//! | `app` | `stream/NAME` | the facts about a stream |
//! | `app` | `version/NN` | one part of the version |
//! | `app` | `worker/ID` | a worker |
//! | `leases/STREAM` | `SHARD` | a lease |
//!
//! A poll queries the end of the first partition, the application's facts are its beginning, and a
//! list is a partition of its own.
//!
//! The version is the sum of its parts. A single item would be in every transaction that changes
//! the plan, and all of them would conflict. With several parts, two writes rarely conflict.

use crate::lease::stores::dynamodb::expression::{Expression, WriteRequest};
use crate::lease::stores::dynamodb::item::{AttributeMap, number, text};
use crate::lease::stores::dynamodb::table::KeyRange;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{LeaseKey, WorkerId};

/// Name of the partition key.
pub(crate) const PARTITION: &str = "pk";
/// Name of the sort key.
pub(crate) const SORT: &str = "sk";
/// Number of parts of the version.
pub(crate) const VERSION_PARTS: u64 = 16;

const APPLICATION: &str = "app";
const VERSION: &str = "version";

fn key(partition: impl Into<String>, sort: impl Into<String>) -> AttributeMap {
    AttributeMap::from([(PARTITION.into(), text(partition)), (SORT.into(), text(sort))])
}

/// Returns the key of the row with the table's format.
pub(crate) fn format() -> AttributeMap {
    key(APPLICATION, "format")
}

/// Returns the key of a lease's row.
pub(crate) fn lease(of: &LeaseKey) -> AttributeMap {
    key(format!("leases/{}", of.stream), of.shard.as_str())
}

/// Returns the key of a worker's row.
pub(crate) fn worker(id: &WorkerId) -> AttributeMap {
    key(APPLICATION, format!("worker/{id}"))
}

/// Returns the key of a stream's row.
pub(crate) fn stream(name: &StreamName) -> AttributeMap {
    key(APPLICATION, format!("stream/{name}"))
}

/// The kind of a row in the application's partition, by its sort key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartitionRow<'a> {
    Format,
    Stream(&'a str),
    Version,
    Worker(&'a str),
}

impl<'a> PartitionRow<'a> {
    pub(crate) fn of(sort: &'a str) -> Option<Self> {
        match sort.split_once('/') {
            None => (sort == "format").then_some(Self::Format),
            Some(("stream", name)) => Some(Self::Stream(name)),
            Some((VERSION, _)) => Some(Self::Version),
            Some(("worker", id)) => Some(Self::Worker(id)),
            Some(_) => None,
        }
    }
}

/// Increments one part of the version.
pub(crate) fn bump(part: u64) -> WriteRequest {
    let part = part % VERSION_PARTS;
    let one = Expression::default().add(VERSION, number(1));
    WriteRequest::update(key(APPLICATION, format!("{VERSION}/{part:02}")), one)
}

/// The attribute of a part of the version.
pub(crate) const VERSION_PART: &str = VERSION;

/// Returns the key range of a poll: version and workers.
pub(crate) fn poll() -> KeyRange {
    part_of_application("#pk = :v0 AND #sk >= :v1", VERSION)
}

/// Returns the key range of the application's facts: format, streams and version.
pub(crate) fn application() -> KeyRange {
    part_of_application("#pk = :v0 AND #sk < :v1", "worker")
}

/// Returns the key range of a stream's leases.
pub(crate) fn leases(stream: &StreamName) -> KeyRange {
    let expression = Expression::default().when(PARTITION, text(format!("leases/{stream}")));
    KeyRange { key: expression.condition_text(), expression, ..KeyRange::default() }
}

/// Returns the scan for every lease that names a worker, of any stream.
pub(crate) fn leases_of(worker: &WorkerId) -> KeyRange {
    let expression = Expression::default().when(super::row::OWNER, text(worker.as_str()));
    KeyRange { filter: expression.condition_text(), expression, ..KeyRange::default() }
}

fn part_of_application(key: &str, bound: &str) -> KeyRange {
    // The placeholders are numbered in this order.
    let expression = Expression::default().when(PARTITION, text(APPLICATION));
    let expression = expression.when(SORT, text(bound));
    KeyRange { key: Some(key.to_owned()), expression, ..KeyRange::default() }
}
