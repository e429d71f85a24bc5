//! CBOR as used by Kinesis (`application/x-amz-cbor-1.1`): a borrowing cursor, and writers.
//!
//! Shared by the client and the local stream.

mod read;
pub mod write;

pub use read::{CborCursor, ContainerItems, ItemHead};

/// Error: a body is not the expected CBOR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedCbor(pub &'static str);

/// Maximum nesting depth of arrays, maps and tags. No body of the API needs more than six.
pub const MAX_DEPTH: u8 = 32;

/// Tag of a point in time.
pub const TAG_TIME: u64 = 1;

/// Major types of RFC 8949, section 3.1.
pub mod major {
    /// A non-negative integer.
    pub const UNSIGNED: u8 = 0;
    /// A negative integer.
    pub const NEGATIVE: u8 = 1;
    /// A byte string.
    pub const BYTES: u8 = 2;
    /// A text string.
    pub const TEXT: u8 = 3;
    /// An array.
    pub const ARRAY: u8 = 4;
    /// A map.
    pub const MAP: u8 = 5;
    /// A tag before an item.
    pub const TAG: u8 = 6;
    /// Floats, booleans, null and the break.
    pub const SIMPLE: u8 = 7;
}

/// Byte that ends an indefinite-length array, map or string.
const BREAK: u8 = 0xff;
