//! CBOR as the SDKs for Java use it (`application/x-amz-cbor-1.1`).
//!
//! Hot operations read with [`CborCursor`] and write with the functions of [`mod@write`]. All
//! others go through [`value`], so that one set of serde types serves both encodings.

pub(crate) mod value;

pub(crate) use anabranch_model::cbor::{CborCursor, MalformedCbor, write};
