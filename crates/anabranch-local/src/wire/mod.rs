//! Encodings on the wire: bodies in JSON and CBOR, and the frames of an event stream.
//!
//! The three hot operations have dedicated decoders and encoders, which borrow from the request and
//! write into one buffer. All others use serde types; their CBOR goes through JSON values.

use std::borrow::Cow;

use serde::Deserialize;

use crate::error::{ApiError, ErrorKind};
use crate::op::put_records::Payload;

pub(crate) mod cbor;
pub(crate) mod json;
pub(crate) mod put_record;
pub(crate) mod put_records;
pub(crate) mod record_head;
pub(crate) mod records;
pub(crate) mod get_records;
pub(crate) mod subscription;
pub(crate) mod event_stream;

/// Decodes a body that must be a JSON object. An empty body is an empty request.
pub(crate) fn read_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    // Checked once for the whole body, so that no string in it must be checked again.
    let text = std::str::from_utf8(body).map_err(unreadable)?;
    // serde would accept a list for a struct.
    match text.trim_start().as_bytes().first() {
        None => serde_json::from_str("{}").map_err(unreadable),
        Some(b'{') => serde_json::from_str(text).map_err(unreadable),
        Some(_) => Err(unreadable("the body is not an object")),
    }
}

/// Decodes a body that must be a CBOR map into a JSON value.
pub(crate) fn read_cbor(body: &[u8]) -> Result<serde_json::Value, ApiError> {
    let value = cbor::value::from_cbor(body).map_err(unreadable)?;
    if value.is_object() { Ok(value) } else { Err(unreadable("the body is not a map")) }
}

/// Returns the error for an unreadable body.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to `map_err`")]
pub(crate) fn unreadable(reason: impl ToString) -> ApiError {
    ApiError::new(ErrorKind::Serialization, reason.to_string())
}

/// Returns the error for a missing field.
pub(crate) fn absent(field: &str) -> ApiError {
    ApiError::validation(format!(
        "1 validation error detected: Value null at '{field}' failed to satisfy constraint: \
         Member must not be null"
    ))
}

/// Converts a byte string to a payload. One that arrived in chunks goes through base64, because it
/// is too rare for a representation of its own.
pub(crate) fn payload(data: Cow<'_, [u8]>) -> Payload<'_> {
    match data {
        Cow::Borrowed(data) => Payload::Raw(data),
        Cow::Owned(data) => {
            Payload::Base64(Cow::Owned(base64_simd::STANDARD.encode_to_string(data)))
        }
    }
}
