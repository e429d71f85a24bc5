//! The KPL aggregate: many user records in one Kinesis record.
//!
//! ```text
//! F3 89 9A C2 | message | MD5 of the message, 16 bytes
//!
//! message  { repeated string partition_key_table     = 1;
//!            repeated string explicit_hash_key_table = 2;
//!            repeated Record records                 = 3; }
//! Record   { required uint64 partition_key_index     = 1;
//!            optional uint64 explicit_hash_key_index = 2;
//!            required bytes  data                    = 3;
//!            repeated Tag    tags                    = 4; }
//! Tag      { required string key = 1;  optional string value = 2; }
//! ```
//!
//! Writers put all of field 1 first, then 2, then 3; readers accept any order. If enabled, a
//! producer puts its deduplication tag in the tags of the last record. Of other tags a reader only
//! checks that they are well formed.

mod wire;
pub mod digest;
#[cfg(target_arch = "x86_64")]
mod simd;
mod table;
pub mod dedup_tag;
pub mod encode;
pub mod decode;

/// Magic bytes at the start of an aggregate.
pub const MAGIC: [u8; 4] = [0xf3, 0x89, 0x9a, 0xc2];

/// Partition key of every aggregate. The explicit hash key selects its shard.
pub const AGGREGATE_PARTITION_KEY: &str = "a";

/// Bytes around the message: the magic and the digest.
const FRAME_BYTES: usize = MAGIC.len() + digest::DIGEST_BYTES;
