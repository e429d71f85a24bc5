//! How a producer behaves: what the machine is told once.

use crate::retry::Backoff;

/// Whether the records of a key keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyOrder {
    /// They do: one container of a lane on its way.
    #[default]
    Strict,
    /// They may change places after a failure.
    None,
}

/// What goes into one record of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aggregation {
    /// Records of one shard, by the map. Where there is no map, records of one hash.
    #[default]
    ByShard,
    /// Records of one hash. No map is needed, and none can be wrong.
    ByKey,
    /// One record.
    Off,
}

/// What happens to a key when one of its accepted records is not placed for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The key stops: its later records are refused until it is resumed.
    #[default]
    StopKey,
    /// The later records go on. This gives up the order of the key.
    Continue,
}

/// How a producer behaves. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerSettings {
    /// Whether keys keep their order.
    pub order: KeyOrder,
    /// What goes into one record of the stream.
    pub aggregation: Aggregation,
    /// What a hole does to its key, in strict order.
    pub on_failure: OnFailure,
    /// The number that this producer marks its aggregates with, if it does.
    pub dedup_tags: Option<u64>,
    /// Whether each container goes by `PutRecord`, with the number of the one before it.
    pub numbered: bool,
    /// The largest record that the stream takes, in bytes of key and data.
    pub record_max_bytes: usize,
    /// The least that a container grows to while records wait, whatever the round trip.
    pub aggregate_min_bytes: usize,
    /// The most that a container grows to.
    pub aggregate_max_bytes: usize,
    /// How long a record waits for others at an idle lane.
    pub linger_ms: u64,
    /// How long a record may stay without an outcome. `None` is for ever.
    pub deadline_ms: Option<u64>,
    /// How long a container waits for the list that judges it.
    pub verify_timeout_ms: u64,
    /// After how long without a sign of the stream the map is dropped.
    pub map_idle_ms: u64,
    /// Requests on their way at a time.
    pub max_requests: usize,
    /// Keys that may stand stopped at a time.
    pub max_stopped_keys: usize,
    /// The waits of a lane between attempts.
    pub backoff: Backoff,
    /// The waits of a paused shard between probes, while the service refuses the caller.
    pub refusal_backoff: Backoff,
    /// Records a second that a shard takes from this producer.
    pub shard_records_per_second: u64,
    /// Bytes a second that a shard takes from this producer.
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
