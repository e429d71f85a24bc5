//! Settings of a coordinator, with their defaults.

use anabranch_model::ids::StreamName;
use anabranch_model::lease::plan;
use anabranch_model::position::StartPosition;

/// Settings of a coordinator. Times are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoordinatorSettings {
    /// Name of the worker. Each join appends 64 random bits.
    pub name: String,
    /// Host of the worker, for operators. Default: empty.
    pub host: String,
    /// Streams that are read from the start. Default: none.
    pub streams: Vec<StreamSettings>,
    /// Time without a heartbeat after which other workers take this worker's leases. Default
    /// 10,000.
    ///
    /// The native layout stores it in the worker's row, and KCL's layout in the worker's id. Other
    /// workers of this library use that value. Workers of KCL for Java only know their own failover
    /// time, so in a fleet with them all workers must use the same one.
    pub lease_time_ms: u64,
    /// Pause between two polls of the store while no lease moves. Default `None`: the pause that
    /// the store suggests.
    ///
    /// In KCL's layout every poll is a scan, so the pause is at least 1 s and at most two lease
    /// times, as in the taker of KCL for Java.
    pub poll_interval: Option<u64>,
    /// Pause between two polls while leases change owners. Default 100.
    pub busy_poll_interval: u64,
    /// Interval at which all leases are listed even if the version has not moved. Default 30,000.
    pub full_list_interval: u64,
    /// Time that the owner of a lease has to drain it when another worker requests it. Default
    /// 20,000.
    pub drain_timeout: u64,
    /// Pause before a lease whose reader failed is released. Default 5,000.
    pub failure_backoff: u64,
    /// Interval at which the stream and its rows are audited. Default 60,000.
    ///
    /// In KCL's layout it is up to five times longer, so that audits read at most about a tenth of
    /// what polls read.
    pub audit_interval: u64,
    /// Number of consecutive audits that must find a hole in the hash range before it is repaired.
    /// Default 3.
    pub hole_audits: u32,
    /// Maximum time of one call of the store. Default 3,000.
    pub call_timeout: u64,
    /// Maximum number of concurrent writes of one worker. Default 16.
    pub max_concurrent_writes: usize,
    /// Maximum number of lease handles that wait to be received. Default 1,024.
    pub max_waiting_handles: usize,
    /// Limits and settings of lease balancing.
    pub plan: plan::PlanSettings,
}

impl CoordinatorSettings {
    /// Returns the defaults for a worker with this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            host: String::new(),
            streams: Vec::new(),
            lease_time_ms: 10_000,
            poll_interval: None,
            busy_poll_interval: 100,
            full_list_interval: 30_000,
            drain_timeout: 20_000,
            failure_backoff: 5_000,
            audit_interval: 60_000,
            hole_audits: 3,
            call_timeout: 3_000,
            max_concurrent_writes: 16,
            max_waiting_handles: 1_024,
            plan: plan::PlanSettings::default(),
        }
    }

    /// Adds a stream, read from `start` if the application has never read it.
    #[must_use]
    pub fn with_stream(mut self, name: impl Into<StreamName>, start: StartPosition) -> Self {
        self.streams.push(StreamSettings { name: name.into(), start });
        self
    }

    /// Sets the lease time, in milliseconds.
    #[must_use]
    pub fn with_lease_time_ms(mut self, lease_time_ms: u64) -> Self {
        self.lease_time_ms = lease_time_ms;
        self
    }

    /// Returns the time for which a request for a lease waits for the owner, in milliseconds. It is
    /// longer than the owner may drain.
    pub(super) fn hand_over_timeout_ms(&self) -> u64 {
        self.drain_timeout.saturating_add(self.lease_time_ms)
    }

    /// Returns the pause between two heartbeats in milliseconds, before jitter.
    pub(super) fn heartbeat_interval_ms(&self) -> u64 {
        self.lease_time_ms / 3
    }
}

/// A stream to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSettings {
    /// Name or ARN of the stream. Leases and events use the name under which its rows are stored,
    /// see [`StreamNames`](anabranch_model::lease::StreamNames).
    pub name: StreamName,
    /// Start position, if the application has never read the stream.
    pub start: StartPosition,
}
