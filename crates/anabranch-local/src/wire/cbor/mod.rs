//! CBOR as the SDKs for Java speak it (`application/x-amz-cbor-1.1`).
//!
//! Hot operations read with [`Cursor`] and write with the functions of [`write`]. Cold operations go
//! through [`value`], so that each has one set of serde types for both content types.

mod read;
pub(crate) mod value;
pub(crate) mod write;

pub(crate) use read::Cursor;

/// Why a body is not the CBOR that was expected, in words for a `SerializationException`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Containers and tags may nest this deep. No request of the API needs more than six.
const MAX_DEPTH: u8 = 32;

/// The major types of RFC 8949, section 3.1.
mod major {
    pub(super) const UNSIGNED: u8 = 0;
    pub(super) const NEGATIVE: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const TEXT: u8 = 3;
    pub(super) const ARRAY: u8 = 4;
    pub(super) const MAP: u8 = 5;
    pub(super) const TAG: u8 = 6;
    pub(super) const SIMPLE: u8 = 7;
}

/// The byte that ends an indefinite container or string.
const BREAK: u8 = 0xff;
/// The tag of a point in time.
const TAG_TIME: u64 = 1;
