//! CBOR as the SDKs for Java speak it (`application/x-amz-cbor-1.1`).
//!
//! Hot operations read with [`CborCursor`] and write with the functions of [`mod@write`]. Cold operations go
//! through [`value`], so that each has one set of serde types for both content types.

pub(crate) mod value;

pub(crate) use anabranch_model::cbor::{CborCursor, MalformedCbor, write};
