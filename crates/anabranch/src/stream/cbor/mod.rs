//! Kinesis' CBOR (`application/x-amz-cbor-1.1`) as a protocol of the AWS SDK.
//!
//! ```text
//! SDK input ─► encode ─► request        reply ─► decode ─► SDK output
//!                 └─ or JSON ─┘            └─ by its content type
//! ```
//!
//! It costs less CPU than JSON: no base64, no escapes, and record data that are slices of the
//! reply. Credentials, signatures, endpoints and typed errors stay the SDK's. What an endpoint
//! shows of itself decides which of the two is spoken: see [`wire_format`].

mod body;
mod encode;
mod decode;
pub(super) mod records;
pub(super) mod wire_format;
mod protocol;

pub(super) use protocol::{EncodingInterceptor, KinesisProtocol};
