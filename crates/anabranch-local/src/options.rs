//! Options of an engine: delays, limits and the seed of its faults.

use anabranch_model::limits;

/// Options of an engine. `EngineOptions::default()` is a fast local stream without rate limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// The account in every ARN and message, 12 digits. Default: `000000000000`.
    pub account_id: String,
    /// The region in every ARN. Default: `us-east-1`.
    pub region: String,
    /// Time that a new stream or consumer stays CREATING, in milliseconds. Default: 50.
    pub create_delay_ms: u64,
    /// Time that a changed stream stays UPDATING, in milliseconds. Default: 50.
    pub update_delay_ms: u64,
    /// Time that a deleted stream or consumer stays DELETING, in milliseconds. Default: 50.
    pub delete_delay_ms: u64,
    /// Maximum number of open shards in the account. Default: 500.
    pub shard_limit: u32,
    /// Initial state of the rate limits: true if shards refuse requests above the service's write
    /// and read rates. Default: false.
    pub enforce_limits: bool,
    /// Age at which a shard iterator expires, in milliseconds. Default: 300,000.
    pub iterator_ttl_ms: u64,
    /// Age at which a pagination token expires, in milliseconds. Default: 300,000.
    pub list_token_ttl_ms: u64,
    /// Maximum duration of one subscription, in milliseconds. Default: 300,000.
    pub subscription_max_ms: u64,
    /// Pause after which an idle subscription sends an empty event, in milliseconds. Clients give
    /// up on a silent connection (Java after 10 s). Default: 2,000.
    pub heartbeat_ms: u64,
    /// Limit on the bytes of memory used by records, including index and unused capacity. Puts
    /// beyond it fail until retention frees memory. Default: `None`, unlimited.
    pub max_memory_bytes: Option<usize>,
    /// Seed of the random decisions of fault rules. Default: 0.
    pub seed: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            account_id: "000000000000".to_owned(),
            region: "us-east-1".to_owned(),
            create_delay_ms: 50,
            update_delay_ms: 50,
            delete_delay_ms: 50,
            shard_limit: limits::ACCOUNT_SHARD_LIMIT,
            enforce_limits: false,
            iterator_ttl_ms: limits::ITERATOR_TTL_MS,
            list_token_ttl_ms: limits::LIST_SHARDS_TOKEN_TTL_MS,
            subscription_max_ms: limits::SUBSCRIPTION_MAX_MS,
            heartbeat_ms: 2_000,
            max_memory_bytes: None,
            seed: 0,
        }
    }
}

impl EngineOptions {
    /// Returns options under which every transitional state ends at once.
    pub fn instant() -> Self {
        Self { create_delay_ms: 0, update_delay_ms: 0, delete_delay_ms: 0, ..Self::default() }
    }
}
