//! The SDK protocol for Kinesis: CBOR where it pays off, JSON for the rest.

use super::body::{SegmentedBody, digest};
use super::decode::CborDecoder;
use super::encode::CborEncoder;
use super::wire_format::{CborReply, WireFormat, WireFormatState};
use anabranch_model::cbor::{CborCursor, MalformedCbor};
use aws_runtime::auth::PayloadSigningOverride;
use aws_sdk_kinesis::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_kinesis::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_kinesis::error::BoxError;
use aws_smithy_json::protocol::aws_json_rpc::AwsJsonRpcProtocol;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use aws_smithy_runtime_api::http::{Request, Response};
use aws_smithy_schema::codec::DynCodec;
use aws_smithy_schema::protocol::{ClientProtocolInner, ServiceShapeName, apply_http_endpoint};
use aws_smithy_schema::serde::{SerdeError, SerializableStruct, ShapeDeserializer};
use aws_smithy_schema::{Schema, ShapeId, shape_id};
use aws_smithy_types::byte_stream::ByteStream;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use aws_smithy_types::endpoint::Endpoint;
use aws_smithy_types::error::metadata::{Builder, ErrorMetadata};
use bytes::Bytes;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const ID: ShapeId<'static> = shape_id!("aws.protocols", "awsCbor1_1");
const CONTENT_TYPE: &str = "application/x-amz-cbor-1.1";

/// Calls that are always JSON. The service has no CBOR for the events of a subscription. A stream
/// is identified by its creation time, which must not depend on the format that a worker uses.
///
/// Requests with a timestamp are JSON too: test doubles disagree on its CBOR unit, and a wrong unit
/// would read a stream from the wrong position.
const IN_JSON: [&str; 2] = ["SubscribeToShard", "DescribeStreamSummary"];

/// Protocol that writes requests in CBOR or JSON, and reads replies in either format.
#[derive(Debug)]
pub(in crate::stream) struct KinesisProtocol {
    /// The SDK's own JSON protocol.
    json: AwsJsonRpcProtocol,
    /// Format detection of the endpoint.
    spoken: Arc<WireFormatState>,
}

/// Format in which a request was written. Stored with the call, for the code that reads the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RequestEncoding(WireFormat);

impl Storable for RequestEncoding {
    type Storer = StoreReplace<Self>;
}

/// Interceptor that stores the format of each request, and the payload digest of a segmented body.
#[derive(Debug)]
pub(in crate::stream) struct EncodingInterceptor;

impl Intercept for EncodingInterceptor {
    fn name(&self) -> &'static str {
        "NoteEncoding"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let kind = context.request().headers().get("content-type");
        let is_cbor = kind.is_some_and(|kind| kind.starts_with(CONTENT_TYPE));
        let format = if is_cbor { WireFormat::Cbor } else { WireFormat::Json };
        config.interceptor_state().store_put(RequestEncoding(format));
        if let Some(digest) = digest(context.request().body()) {
            config.interceptor_state().store_put(PayloadSigningOverride::Precomputed(digest));
        }
        Ok(())
    }
}

impl KinesisProtocol {
    pub(in crate::stream) fn new(spoken: Arc<WireFormatState>) -> Self {
        let json = AwsJsonRpcProtocol::aws_json_1_1();
        let json = json.with_default_namespace("com.amazonaws.kinesis");
        Self { json, spoken }
    }

    /// Returns the request in CBOR, or `None` if it must be JSON.
    fn in_cbor(
        &self,
        input: &dyn SerializableStruct,
        schema: &Schema<'_>,
        config: &ConfigBag,
    ) -> Result<Option<Request>, SerdeError> {
        use aws_smithy_schema::serde::ShapeSerializer;
        let (Some(service), Some(operation)) =
            (config.load::<ServiceShapeName>(), config.load::<Metadata>())
        else {
            return Ok(None);
        };
        let operation = operation.name();
        if self.spoken.format() == WireFormat::Json || IN_JSON.contains(&operation) {
            return Ok(None);
        }
        let mut encoder = CborEncoder::new();
        encoder.write_struct(schema, input)?;
        let (body, has_time) = encoder.finish();
        if has_time {
            return Ok(None);
        }
        request(body, &format!("{}.{operation}", service.as_str())).map(Some)
    }
}

fn request(body: SegmentedBody, target: &str) -> Result<Request, SerdeError> {
    let length = body.len().to_string();
    let mut request = Request::new(body.into_body());
    request.set_method("POST").map_err(|error| SerdeError::custom(error.to_string()))?;
    request.set_uri("/").map_err(|error| SerdeError::custom(error.to_string()))?;
    let headers = request.headers_mut();
    headers.insert("Content-Type", CONTENT_TYPE);
    headers.insert("Content-Length", length);
    headers.insert("X-Amz-Target", target.to_owned());
    Ok(request)
}

/// Returns true if the reply's content type is CBOR.
fn is_cbor(response: &Response) -> bool {
    response.headers().get("content-type").is_some_and(|kind| kind.starts_with(CONTENT_TYPE))
}

fn was_cbor(config: &ConfigBag) -> bool {
    config.load::<RequestEncoding>() == Some(&RequestEncoding(WireFormat::Cbor))
}

fn body(response: &Response) -> &[u8] {
    // `None` means a streaming body, which is never read here.
    response.body().bytes().unwrap_or(&[])
}

/// Returns the body as `Bytes` that share its memory. The SDK only lends a slice. An in-memory body
/// can be cloned, and the clone yields its bytes without waiting.
fn shared_body(response: &Response) -> Option<Bytes> {
    let again = response.body().try_clone()?;
    let mut collect = pin!(ByteStream::new(again).collect());
    let Poll::Ready(Ok(whole)) = collect.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    else {
        return None;
    };
    let whole = whole.into_bytes();
    (whole.len() == body(response).len()).then_some(whole)
}

impl ClientProtocolInner for KinesisProtocol {
    type Request = Request;
    type Response = Response;

    fn protocol_id(&self) -> &ShapeId<'static> {
        &ID
    }

    fn serialize_request(
        &self,
        input: &dyn SerializableStruct,
        input_schema: &Schema<'_>,
        endpoint: &str,
        config: &ConfigBag,
    ) -> Result<Request, SerdeError> {
        match self.in_cbor(input, input_schema, config)? {
            Some(request) => Ok(request),
            None => self.json.serialize_request(input, input_schema, endpoint, config),
        }
    }

    fn deserialize_response<'a>(
        &self,
        response: &'a Response,
        output_schema: &Schema<'_>,
        config: &'a ConfigBag,
    ) -> Result<Box<dyn ShapeDeserializer + 'a>, SerdeError> {
        let is_cbor = is_cbor(response);
        if was_cbor(config) && response.status().is_success() {
            self.spoken.note_reply(CborReply { is_cbor, error: None });
        }
        if is_cbor {
            let shared = shared_body(response);
            let decoder = CborDecoder::new(body(response), shared, Arc::clone(&self.spoken));
            return Ok(Box::new(decoder));
        }
        self.json.deserialize_response(response, output_schema, config)
    }

    fn parse_error_metadata(
        &self,
        response: &Response,
        config: &ConfigBag,
    ) -> Result<Builder, SerdeError> {
        let is_cbor = is_cbor(response);
        let metadata = if is_cbor {
            Ok(named_by_header(error_metadata(body(response)), response))
        } else {
            self.json.parse_error_metadata(response, config).map(Builder::build)
        };
        if was_cbor(config) {
            let error = metadata.as_ref().ok().and_then(ErrorMetadata::code).unwrap_or_default();
            self.spoken.note_reply(CborReply { is_cbor, error: Some(error) });
        }
        metadata.map(ErrorMetadata::into_builder)
    }

    fn update_endpoint(
        &self,
        request: &mut Request,
        endpoint: &Endpoint,
        config: &ConfigBag,
    ) -> Result<(), SerdeError> {
        apply_http_endpoint(request, endpoint, config)
    }

    fn payload_codec(&self) -> Option<&dyn DynCodec> {
        self.json.payload_codec()
    }

    fn event_stream_media_type(&self) -> Option<&str> {
        self.json.event_stream_media_type()
    }

    fn parse_event_stream_error_metadata(&self, payload: &[u8]) -> Result<Builder, SerdeError> {
        self.json.parse_event_stream_error_metadata(payload)
    }
}

/// Returns the error name and message of a body, as far as it can be parsed.
fn error_metadata(body: &[u8]) -> ErrorMetadata {
    let mut builder = ErrorMetadata::builder();
    // A truncated body still yields the members before the end.
    let _: Result<(), MalformedCbor> = (|| {
        let mut cursor = CborCursor::new(body);
        let mut members = cursor.map()?;
        while cursor.more(&mut members)? {
            match &*cursor.text()? {
                "__type" => {
                    if let Some(name) = cursor.optional_text()? {
                        builder = std::mem::take(&mut builder).code(bare_name(&name));
                    }
                }
                "message" | "Message" => {
                    if let Some(words) = cursor.optional_text()? {
                        builder = std::mem::take(&mut builder).message(words);
                    }
                }
                _ => cursor.skip()?,
            }
        }
        Ok(())
    })();
    builder.build()
}

/// Adds the error name from the reply's header if the body has none.
fn named_by_header(metadata: ErrorMetadata, response: &Response) -> ErrorMetadata {
    match response.headers().get("x-amzn-errortype") {
        Some(name) if metadata.code().is_none() => {
            metadata.into_builder().code(bare_name(name)).build()
        }
        _ => metadata,
    }
}

/// Strips the namespace before an error name and the address behind it.
fn bare_name(name: &str) -> String {
    let name = name.rsplit('#').next().unwrap_or(name);
    name.split(':').next().unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_body_gives_its_name_and_words_however_it_is_written() {
        for (body, code, message) in [
            (&b"\xa2\x66__type\x61E\x67message\x62hi"[..], Some("E"), Some("hi")),
            (b"\xbf\x66__type\x69com.a.b#E\x67Message\x62hi\xff", Some("E"), Some("hi")),
            (b"\xa2\x61x\x81\x01\x66__type\x67E:http:", Some("E"), None),
            (b"\xa1\x66__type\xf6", None, None),
            (b"\xa2\x66__type\x61E\x67mess", Some("E"), None),
            (b"", None, None),
            (b"<html>", None, None),
        ] {
            let metadata = error_metadata(body);
            assert_eq!((metadata.code(), metadata.message()), (code, message), "{body:x?}");
        }
    }
}
