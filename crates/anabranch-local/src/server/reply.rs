//! Responses: status, headers, ids, and error bodies in the encoding of the request.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::ResponseBody;
use super::target::Encoding;
use crate::error::ApiError;
use crate::wire::cbor::value::to_cbor;

/// Creates a response with a complete body.
pub(crate) fn whole(
    status: u16,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).expect("statuses are constants");
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Creates the response for an error of a Kinesis operation.
pub(crate) fn error(error: &ApiError, encoding: Encoding) -> Response<ResponseBody> {
    let status = error.kind.http_status();
    whole(status, encoding.content_type(), error_body(error, encoding))
}

/// Encodes the body of an error. Omits an empty message, as AWS does.
pub(crate) fn error_body(error: &ApiError, encoding: Encoding) -> Vec<u8> {
    let mut body = json!({"__type": error.kind.name()});
    if !error.message.is_empty() {
        body["message"] = error.message.as_str().into();
    }
    match encoding {
        Encoding::Json => body.to_string().into_bytes(),
        Encoding::Cbor => to_cbor(&body),
    }
}

/// Generates the ids in the headers of every response. They are unique within a server and not
/// secret, so a mixed counter suffices.
#[derive(Debug, Default)]
pub(crate) struct RequestIds(AtomicU64);

impl RequestIds {
    /// Adds the next ids to a response.
    pub(crate) fn stamp(&self, response: &mut Response<ResponseBody>) {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (mix(count * 2), mix(count * 2 + 1));
        let id = format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 48 & 0xfff,
            low & 0xffff_ffff_ffff,
        );
        let long: [u64; 6] = std::array::from_fn(|place| mix(low ^ place as u64));
        let long = long.map(u64::to_be_bytes).concat();
        let headers = response.headers_mut();
        for (name, text) in
            [("x-amzn-requestid", id), ("x-amz-id-2", base64_simd::STANDARD.encode_to_string(long))]
        {
            let value = HeaderValue::try_from(text).expect("hex and base64 are header text");
            headers.insert(name, value);
        }
    }
}

/// The finaliser of `SplitMix64`: maps neighbouring counters to dissimilar numbers, without
/// collisions.
fn mix(count: u64) -> u64 {
    let mut mixed = count.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_answer_has_its_own_ids_in_the_usual_form() {
        let ids = RequestIds::default();
        let mut seen = BTreeSet::new();
        for _ in 0..1_000 {
            let mut response = whole(200, "text/plain", "");
            ids.stamp(&mut response);
            let id = response.headers()["x-amzn-requestid"].to_str().unwrap().to_owned();
            let groups: Vec<_> = id.split('-').map(str::len).collect();
            assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
            assert!(response.headers().contains_key("x-amz-id-2"));
            assert!(seen.insert(id));
        }
    }

    #[test]
    fn errors_speak_the_content_type_that_was_asked() {
        let failure = ApiError::internal();
        let json = error_body(&failure, Encoding::Json);
        let cbor = error_body(&failure, Encoding::Cbor);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["__type"], "InternalFailure");
        assert_eq!(crate::wire::cbor::value::from_cbor(&cbor), Ok(json));
    }
}
