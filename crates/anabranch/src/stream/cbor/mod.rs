//! Kinesis' CBOR (`application/x-amz-cbor-1.1`) as a protocol of the AWS SDK.
//!
//! ```text
//! SDK input ─► encode ─► request        reply ─► decode ─► SDK output
//!                 └─ or JSON ─┘            └─ by its content type
//! ```
//!
//! CBOR costs less CPU than JSON: no base64, no escapes, and record data that are slices of the
//! reply. Credentials, signatures, endpoints and typed errors remain the SDK's. The replies of the
//! endpoint decide which format is used: see [`wire_format`].

mod body;
mod encode;
mod decode;
pub(super) mod records;
pub(super) mod wire_format;
mod protocol;

pub(super) use protocol::{EncodingInterceptor, KinesisProtocol};
