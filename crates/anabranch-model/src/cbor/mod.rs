//! CBOR as Kinesis speaks it (`application/x-amz-cbor-1.1`): a cursor that borrows, and writers.
//!
//! The client and the local stream share it.

mod read;
pub mod write;

pub use read::{CborCursor, ContainerItems, ItemHead};

/// Why a body is not the CBOR that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedCbor(pub &'static str);

/// Containers and tags may nest this deep. No body of the API needs more than six.
pub const MAX_DEPTH: u8 = 32;

/// The tag of a point in time.
pub const TAG_TIME: u64 = 1;

/// The major types of RFC 8949, section 3.1.
pub mod major {
    /// A number that is not negative.
    pub const UNSIGNED: u8 = 0;
    /// A negative number.
    pub const NEGATIVE: u8 = 1;
    /// A byte string.
    pub const BYTES: u8 = 2;
    /// A text.
    pub const TEXT: u8 = 3;
    /// A list.
    pub const ARRAY: u8 = 4;
    /// A map.
    pub const MAP: u8 = 5;
    /// A tag before an item.
    pub const TAG: u8 = 6;
    /// Floats, truth values, null and the break.
    pub const SIMPLE: u8 = 7;
}

/// The byte that ends an indefinite container or string.
const BREAK: u8 = 0xff;
