//! The quotas of the service that decisions depend on, with the unit in the name.
//!
//! Source: the "Quotas and limits" page and the API reference of Amazon Kinesis Data Streams.

/// One kibibyte.
const KIB: usize = 1024;
/// One mebibyte.
const MIB: usize = 1024 * KIB;

/// Records in one `PutRecords` request.
pub const PUT_RECORDS_MAX_RECORDS: usize = 500;
/// Bytes in one `PutRecords` request, partition keys included, on a stream whose record maximum
/// is the default.
pub const PUT_RECORDS_MAX_BYTES: usize = 5 * MIB;
/// Bytes in one `PutRecords` request on a stream that allows larger records.
pub const PUT_RECORDS_MAX_BYTES_LARGE: usize = 10 * MIB;
/// The record maximum of a stream, until it is changed: bytes of the partition key in UTF-8 and of
/// the data before base64 together, as in every record maximum.
pub const RECORD_MAX_BYTES_DEFAULT: usize = MIB;
/// The smallest record maximum that `UpdateMaxRecordSize` accepts, in KiB.
pub const RECORD_MAX_KIB_LOWEST: usize = 1024;
/// The largest record maximum that `UpdateMaxRecordSize` accepts, in KiB.
pub const RECORD_MAX_KIB_HIGHEST: usize = 10 * 1024;
/// Characters (not bytes) of a partition key.
pub const PARTITION_KEY_MAX_CHARS: usize = 256;

/// Records in one `GetRecords` reply.
pub const GET_RECORDS_MAX_RECORDS: usize = 10_000;
/// Bytes in one `GetRecords` reply.
pub const GET_RECORDS_MAX_BYTES: usize = 10 * MIB;
/// `GetRecords` calls a second that one shard serves.
pub const SHARD_READ_CALLS_PER_SECOND: u32 = 5;
/// Bytes a second that one shard gives to all polling readers together.
pub const SHARD_READ_BYTES_PER_SECOND: usize = 2 * MIB;
/// Bytes a second that one shard gives to each fan-out consumer.
pub const FANOUT_BYTES_PER_SECOND: usize = 2 * MIB;
/// Bytes a second that one shard takes in.
pub const SHARD_WRITE_BYTES_PER_SECOND: usize = MIB;
/// Records a second that one shard takes in.
pub const SHARD_WRITE_RECORDS_PER_SECOND: u32 = 1_000;

/// Milliseconds after which an unused shard iterator expires.
pub const ITERATOR_TTL_MS: u64 = 300_000;
/// Milliseconds that one `SubscribeToShard` call lasts.
pub const SUBSCRIPTION_MAX_MS: u64 = 300_000;
/// Milliseconds within which a second `SubscribeToShard` for a consumer and shard is refused.
pub const SUBSCRIPTION_GUARD_MS: u64 = 5_000;
/// Fan-out consumers of one stream.
pub const STREAM_MAX_CONSUMERS: usize = 20;

/// Retention of a new stream, in hours; also the lowest retention.
pub const RETENTION_MIN_HOURS: u32 = 24;
/// The longest retention, in hours (one year).
pub const RETENTION_MAX_HOURS: u32 = 8_760;

/// Shards in one `ListShards` reply.
pub const LIST_SHARDS_MAX_RESULTS: usize = 10_000;
/// Shards in one `ListShards` reply that names no maximum.
pub const LIST_SHARDS_DEFAULT_RESULTS: usize = 1_000;
/// Milliseconds after which a `ListShards` token expires.
pub const LIST_SHARDS_TOKEN_TTL_MS: u64 = 300_000;
/// Tags on one stream.
pub const STREAM_MAX_TAGS: usize = 50;
/// Open shards of a new on-demand stream.
pub const ON_DEMAND_INITIAL_SHARDS: u32 = 4;
/// Shards of one account and region, until raised (the higher, US default).
pub const ACCOUNT_SHARD_LIMIT: u32 = 500;
/// On-demand streams of one account and region.
pub const ACCOUNT_ON_DEMAND_STREAM_LIMIT: u32 = 50;

const _: () = {
    assert!(RECORD_MAX_BYTES_DEFAULT <= PUT_RECORDS_MAX_BYTES);
    assert!(RECORD_MAX_KIB_HIGHEST * KIB <= PUT_RECORDS_MAX_BYTES_LARGE);
    assert!(RECORD_MAX_KIB_HIGHEST * KIB <= GET_RECORDS_MAX_BYTES);
    assert!(RECORD_MAX_KIB_LOWEST * KIB == RECORD_MAX_BYTES_DEFAULT);
    assert!(SUBSCRIPTION_GUARD_MS < SUBSCRIPTION_MAX_MS);
    assert!(LIST_SHARDS_DEFAULT_RESULTS <= LIST_SHARDS_MAX_RESULTS);
};
