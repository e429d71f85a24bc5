//! Settings of the producer's state machine.

use crate::retry::Backoff;

/// Ordering of the records of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyOrder {
    /// Records keep their order: each queue has one Kinesis record in flight.
    #[default]
    Strict,
    /// Records may be reordered after a failure.
    None,
}

/// Grouping of user records into Kinesis records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aggregation {
    /// User records of one shard, by the map. Without a map, user records of one hash.
    #[default]
    ByShard,
    /// User records of one hash. This needs no map, so a wrong map cannot misroute them.
    ByKey,
    /// One user record in each Kinesis record.
    Off,
}

/// Effect of a record that is not placed for certain on later records of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The key stops: its later records are rejected until it is resumed.
    #[default]
    StopKey,
    /// Later records are sent. The order of the key is lost.
    Continue,
}

/// Settings of a producer. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerSettings {
    /// Ordering of the records of a key.
    pub order: KeyOrder,
    /// Grouping of user records into Kinesis records.
    pub aggregation: Aggregation,
    /// Effect of a failed record on its key, in strict order.
    pub on_failure: OnFailure,
    /// Producer number in the deduplication tags of aggregates. `None` adds no tags.
    pub dedup_tags: Option<u64>,
    /// True if each Kinesis record is sent by `PutRecord`, with the sequence number of the previous
    /// one.
    pub numbered: bool,
    /// Largest record that the stream accepts, in bytes of key and data.
    pub record_max_bytes: usize,
    /// Lower bound of an aggregate's target size in bytes, for short round trips.
    pub aggregate_min_bytes: usize,
    /// Maximum size of an aggregate in bytes.
    pub aggregate_max_bytes: usize,
    /// Time for which a record waits for others in an idle queue.
    pub linger_ms: u64,
    /// Maximum time without an outcome. `None` means no limit.
    pub deadline_ms: Option<u64>,
    /// Maximum time for which a Kinesis record waits for the list that verifies it.
    pub verify_timeout_ms: u64,
    /// Time without evidence of the stream after which the map is dropped.
    pub map_idle_ms: u64,
    /// Maximum number of requests in flight.
    pub max_requests: usize,
    /// Maximum number of stopped keys. One more stops the producer.
    pub max_stopped_keys: usize,
    /// Backoff of a queue between attempts.
    pub backoff: Backoff,
    /// Backoff of a paused shard between probes, while the service refuses the caller.
    pub refusal_backoff: Backoff,
    /// Records per second that a shard takes from this producer.
    pub shard_records_per_second: u64,
    /// Bytes per second that a shard takes from this producer.
    pub shard_bytes_per_second: u64,
}

impl Default for ProducerSettings {
    fn default() -> Self {
        Self {
            order: KeyOrder::Strict,
            aggregation: Aggregation::ByShard,
            on_failure: OnFailure::StopKey,
            dedup_tags: None,
            numbered: false,
            record_max_bytes: crate::limits::RECORD_MAX_BYTES_DEFAULT,
            aggregate_min_bytes: 51_200,
            aggregate_max_bytes: crate::limits::RECORD_MAX_BYTES_DEFAULT,
            linger_ms: 20,
            deadline_ms: None,
            verify_timeout_ms: 5_000,
            map_idle_ms: 30_000,
            max_requests: 24,
            max_stopped_keys: 10_000,
            backoff: Backoff::new(50, 5_000),
            refusal_backoff: Backoff::new(1_000, 30_000),
            shard_records_per_second: u64::from(crate::limits::SHARD_WRITE_RECORDS_PER_SECOND),
            shard_bytes_per_second: crate::limits::SHARD_WRITE_BYTES_PER_SECOND as u64,
        }
    }
}
