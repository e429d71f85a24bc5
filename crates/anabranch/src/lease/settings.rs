//! What a coordinator can be told.

use anabranch_model::ids::StreamName;
use anabranch_model::lease::plan;
use anabranch_model::position::StartPosition;

/// What a coordinator can be told. Times are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoordinatorSettings {
    /// The worker's name. Each join adds 64 random bits to it.
    pub name: String,
    /// Where the worker runs, for operators.
    pub host: String,
    /// The streams that are read from the start on.
    pub streams: Vec<StreamSettings>,
    /// For how long this worker may be silent before others take its leases. In the native layout
    /// it stands on the worker's row, and the others go by it; in KCL's layout it is part of the
    /// worker's id. Workers of Java know their own failover time only, so beside them it has to be
    /// the same for all.
    pub lease_time_ms: u64,
    /// The pause between two looks at the store while nothing happens. `None` is the pause that
    /// the store suggests. In KCL's layout, where every look is a scan, it is at least a second and
    /// at most two lease times, the pause of Java's taker.
    pub poll_interval: Option<u64>,
    /// The pause between two looks while leases change hands.
    pub busy_poll_interval: u64,
    /// How often all leases are listed although no version has moved.
    pub full_list_interval: u64,
    /// How long the owner of a lease may drain it when another worker asks for it.
    pub drain_timeout: u64,
    /// The pause before a lease whose reader failed is given up.
    pub failure_backoff: u64,
    /// How often the stream and its rows are audited. In KCL's layout up to five times less often,
    /// where that reads more than a tenth of what looks read.
    pub audit_interval: u64,
    /// How many audits in a row have to see a hole before it is repaired.
    pub hole_audits: u32,
    /// The longest that one call of the store is waited for.
    pub call_timeout: u64,
    /// Writes that one worker has under way at once.
    pub max_concurrent_writes: usize,
    /// Grips that may wait for whoever runs the shards.
    pub max_waiting_handles: usize,
    /// What bounds the plan.
    pub plan: plan::PlanSettings,
}

impl CoordinatorSettings {
    /// The defaults for a worker of this name.
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

    /// Adds a stream.
    #[must_use]
    pub fn with_stream(mut self, name: impl Into<StreamName>, start: StartPosition) -> Self {
        self.streams.push(StreamSettings { name: name.into(), start });
        self
    }

    /// Sets the lease time.
    #[must_use]
    pub fn with_lease_time_ms(mut self, lease_time_ms: u64) -> Self {
        self.lease_time_ms = lease_time_ms;
        self
    }

    /// For how long a name on a lease waits for its owner: longer than the owner may drain.
    pub(super) fn hand_over_timeout_ms(&self) -> u64 {
        self.drain_timeout.saturating_add(self.lease_time_ms)
    }

    /// The pause between two beats, before jitter.
    pub(super) fn heartbeat_interval_ms(&self) -> u64 {
        self.lease_time_ms / 3
    }
}

/// A stream to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSettings {
    /// Its name, or its ARN. Leases and events have the name that the rows lie under, see
    /// [`StreamNames`](anabranch_model::lease::StreamNames).
    pub name: StreamName,
    /// Where to start, if the application has never read it.
    pub start: StartPosition,
}
