//! Service quotas that decisions depend on, with the unit in the name.
//!
//! Source: the "Quotas and limits" page and the API reference of Amazon Kinesis Data Streams.

/// One kibibyte.
const KIB: usize = 1024;
/// One mebibyte.
const MIB: usize = 1024 * KIB;

/// Maximum records in one `PutRecords` request.
pub const PUT_RECORDS_MAX_RECORDS: usize = 500;
/// Maximum bytes in one `PutRecords` request, including partition keys, on a stream with the
/// default record limit.
pub const PUT_RECORDS_MAX_BYTES: usize = 5 * MIB;
/// Maximum bytes in one `PutRecords` request on a stream that allows larger records.
pub const PUT_RECORDS_MAX_BYTES_LARGE: usize = 10 * MIB;
/// Default record limit of a stream, in bytes. Like every record limit, it covers the partition key
/// in UTF-8 and the data before base64.
pub const RECORD_MAX_BYTES_DEFAULT: usize = MIB;
/// Smallest record limit that `UpdateMaxRecordSize` accepts, in KiB.
pub const RECORD_MAX_KIB_LOWEST: usize = 1024;
/// Largest record limit that `UpdateMaxRecordSize` accepts, in KiB.
pub const RECORD_MAX_KIB_HIGHEST: usize = 10 * 1024;
/// Maximum characters (not bytes) of a partition key.
pub const PARTITION_KEY_MAX_CHARS: usize = 256;

/// Maximum records in one `GetRecords` reply.
pub const GET_RECORDS_MAX_RECORDS: usize = 10_000;
/// Maximum bytes in one `GetRecords` reply.
pub const GET_RECORDS_MAX_BYTES: usize = 10 * MIB;
/// `GetRecords` calls per second that one shard serves.
pub const SHARD_READ_CALLS_PER_SECOND: u32 = 5;
/// Bytes per second that one shard delivers to all polling readers together.
pub const SHARD_READ_BYTES_PER_SECOND: usize = 2 * MIB;
/// Bytes per second that one shard delivers to each fan-out consumer.
pub const FANOUT_BYTES_PER_SECOND: usize = 2 * MIB;
/// Bytes per second that one shard accepts.
pub const SHARD_WRITE_BYTES_PER_SECOND: usize = MIB;
/// Records per second that one shard accepts.
pub const SHARD_WRITE_RECORDS_PER_SECOND: u32 = 1_000;

/// Milliseconds after which an unused shard iterator expires.
pub const ITERATOR_TTL_MS: u64 = 300_000;
/// Maximum duration of one `SubscribeToShard` call, in milliseconds.
pub const SUBSCRIPTION_MAX_MS: u64 = 300_000;
/// Milliseconds within which a second `SubscribeToShard` for the same consumer and shard is
/// refused.
pub const SUBSCRIPTION_GUARD_MS: u64 = 5_000;
/// Maximum fan-out consumers of one stream.
pub const STREAM_MAX_CONSUMERS: usize = 20;

/// Retention of a new stream, in hours; also the minimum.
pub const RETENTION_MIN_HOURS: u32 = 24;
/// Maximum retention, in hours (one year).
pub const RETENTION_MAX_HOURS: u32 = 8_760;

/// Maximum shards in one `ListShards` reply.
pub const LIST_SHARDS_MAX_RESULTS: usize = 10_000;
/// Shards in one `ListShards` reply if the request sets no maximum.
pub const LIST_SHARDS_DEFAULT_RESULTS: usize = 1_000;
/// Milliseconds after which a `ListShards` token expires.
pub const LIST_SHARDS_TOKEN_TTL_MS: u64 = 300_000;
/// Maximum tags on one stream.
pub const STREAM_MAX_TAGS: usize = 50;
/// Open shards of a new on-demand stream.
pub const ON_DEMAND_INITIAL_SHARDS: u32 = 4;
/// Maximum shards of one account and region, until raised (the higher, US default).
pub const ACCOUNT_SHARD_LIMIT: u32 = 500;
/// Maximum on-demand streams of one account and region.
pub const ACCOUNT_ON_DEMAND_STREAM_LIMIT: u32 = 50;

const _: () = {
    assert!(RECORD_MAX_BYTES_DEFAULT <= PUT_RECORDS_MAX_BYTES);
    assert!(RECORD_MAX_KIB_HIGHEST * KIB <= PUT_RECORDS_MAX_BYTES_LARGE);
    assert!(RECORD_MAX_KIB_HIGHEST * KIB <= GET_RECORDS_MAX_BYTES);
    assert!(RECORD_MAX_KIB_LOWEST * KIB == RECORD_MAX_BYTES_DEFAULT);
    assert!(SUBSCRIPTION_GUARD_MS < SUBSCRIPTION_MAX_MS);
    assert!(LIST_SHARDS_DEFAULT_RESULTS <= LIST_SHARDS_MAX_RESULTS);
};
