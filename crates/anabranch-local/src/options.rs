//! How an engine behaves: delays, limits and the seed of its chance.

use anabranch_model::limits;

/// Options of an engine. `Options::default()` is a quick local stream without rate limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// The account in every ARN and message, 12 digits.
    pub account_id: String,
    /// The region in every ARN.
    pub region: String,
    /// How long a new stream or consumer stays CREATING, in milliseconds.
    pub create_delay_ms: u64,
    /// How long a changed stream stays UPDATING, in milliseconds.
    pub update_delay_ms: u64,
    /// How long a deleted stream or consumer stays DELETING, in milliseconds.
    pub delete_delay_ms: u64,
    /// Open shards that the account may have in all.
    pub shard_limit: u32,
    /// Whether shards begin by refusing what is above the service's write and read rates.
    pub enforce_limits: bool,
    /// Age at which a shard iterator expires, in milliseconds.
    pub iterator_ttl_ms: u64,
    /// Age at which the token of a list expires, in milliseconds.
    pub list_token_ttl_ms: u64,
    /// How long one subscription lasts, in milliseconds.
    pub subscription_max_ms: u64,
    /// Pause after which a quiet subscription sends an empty event, in milliseconds. Clients give
    /// up on a silent connection (Java after 10 s).
    pub heartbeat_ms: u64,
    /// Bytes of memory that records may take, index and unused room included. Puts that go beyond
    /// fail until retention has freed some. `None`: as many as there are.
    pub max_memory_bytes: Option<usize>,
    /// Seed of the faults' chance.
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
    /// Options under which every change of state is over at once.
    pub fn instant() -> Self {
        Self { create_delay_ms: 0, update_delay_ms: 0, delete_delay_ms: 0, ..Self::default() }
    }
}
