//! Where the rows of the native layout lie.
//!
//! | partition `pk` | sort key `sk` | row |
//! |---|---|---|
//! | `app` | `format` | which format the table has, and the oldest whose workers may use it (`min_reader`) |
//! | `app` | `stream/NAME` | the facts about a stream |
//! | `app` | `version/NN` | one part of the version |
//! | `app` | `worker/ID` | a worker |
//! | `leases/STREAM` | `SHARD` | a lease |
//!
//! A look asks for the end of the first partition, the application's facts are its beginning, and
//! a list is a partition of its own.
//!
//! The version is the sum of its parts. One item would be in every transaction that changes the
//! plan, and each would be in the way of all the others; with several, two writes rarely meet.

use crate::lease::stores::dynamodb::expression::{Expression, WriteRequest};
use crate::lease::stores::dynamodb::item::{AttributeMap, number, text};
use crate::lease::stores::dynamodb::table::KeyRange;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{LeaseKey, WorkerId};

/// The partition key's name.
pub(crate) const PARTITION: &str = "pk";
/// The sort key's name.
pub(crate) const SORT: &str = "sk";
/// Into how many parts the version is cut.
pub(crate) const VERSION_PARTS: u64 = 16;

const APPLICATION: &str = "app";
const VERSION: &str = "version";

fn key(partition: impl Into<String>, sort: impl Into<String>) -> AttributeMap {
    AttributeMap::from([(PARTITION.into(), text(partition)), (SORT.into(), text(sort))])
}

/// The row that says which format the table has.
pub(crate) fn format() -> AttributeMap {
    key(APPLICATION, "format")
}

/// The row of a lease.
pub(crate) fn lease(of: &LeaseKey) -> AttributeMap {
    key(format!("leases/{}", of.stream), of.shard.as_str())
}

/// The row of a worker.
pub(crate) fn worker(id: &WorkerId) -> AttributeMap {
    key(APPLICATION, format!("worker/{id}"))
}

/// The row of a stream's facts.
pub(crate) fn stream(name: &StreamName) -> AttributeMap {
    key(APPLICATION, format!("stream/{name}"))
}

/// What a row of the application's partition is, by its sort key.
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

/// Moves the version, by the part that this write has to do with.
pub(crate) fn bump(part: u64) -> WriteRequest {
    let part = part % VERSION_PARTS;
    let one = Expression::default().add(VERSION, number(1));
    WriteRequest::update(key(APPLICATION, format!("{VERSION}/{part:02}")), one)
}

/// The attribute that a part of the version is kept in.
pub(crate) const VERSION_PART: &str = VERSION;

/// Version and workers: what a look shows.
pub(crate) fn poll() -> KeyRange {
    part_of_application("#pk = :v0 AND #sk >= :v1", VERSION)
}

/// Format, streams and version.
pub(crate) fn application() -> KeyRange {
    part_of_application("#pk = :v0 AND #sk < :v1", "worker")
}

/// The leases of a stream.
pub(crate) fn leases(stream: &StreamName) -> KeyRange {
    let expression = Expression::default().when(PARTITION, text(format!("leases/{stream}")));
    KeyRange { key: expression.condition_text(), expression, ..KeyRange::default() }
}

/// Every lease that names a worker, of whatever stream.
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
