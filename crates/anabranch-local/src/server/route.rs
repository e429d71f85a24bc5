//! Routing of a request to the service that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::watch;

use super::body::ResponseBody;
use super::cloudwatch::{CloudWatchProtocol, ReceivedMetrics};
use super::connections::Counter;
use super::dynamodb::Tables;
use super::reply::{self, RequestIds};
use super::target::{Encoding, RequestTarget};
use super::{control, dispatch};
use crate::buffer;
use crate::engine::Engine;
use crate::error::{ApiError, ErrorKind};

/// Maximum size of a request body: 10 MiB of records as base64, plus keys and names.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;

/// The slowest rate at which a body may arrive, in bytes per second.
const SLOWEST_LINE: u64 = 64 * 1024;

/// Path prefix of CloudWatch requests in RPC v2 CBOR.
const METRICS_PATH: &str = "/service/GraniteServiceVersion20100801/operation/";

/// The shared state behind all requests.
pub(crate) struct Service {
    /// The engine with the streams.
    pub(crate) engine: Arc<Engine>,
    /// The DynamoDB tables.
    pub(crate) tables: Tables,
    /// Metrics received by `PutMetricData`.
    pub(crate) metrics: Arc<ReceivedMetrics>,
    /// Generates the ids of responses.
    pub(crate) ids: RequestIds,
    /// Connection counts of the port without TLS.
    pub(crate) connections: Arc<Counter>,
    /// Connection counts of the port with TLS, if there is one.
    pub(crate) tls_connections: Option<Arc<Counter>>,
    /// Ends subscriptions when the server stops.
    pub(crate) stop: watch::Receiver<bool>,
    /// Maximum time that a client may keep the server waiting.
    pub(crate) client_timeout: Duration,
}

/// Signals a reply that is lost on purpose: the connection (or the HTTP/2 stream) ends without an
/// answer.
#[derive(Debug, thiserror::Error)]
#[error("the reply was dropped by a fault rule")]
pub(crate) struct ReplyDropped;

/// Answers one request.
pub(crate) async fn answer(
    service: Arc<Service>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, ReplyDropped> {
    let mut response = route(&service, request).await?;
    service.ids.stamp(&mut response);
    Ok(response)
}

async fn route(
    service: &Arc<Service>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, ReplyDropped> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if let Some(path) = path.strip_prefix("/_anabranch/") {
        return Ok(match read(body, service.client_timeout).await {
            Ok(body) => control::answer(service, &head.method, path, &body),
            Err(refusal) => refusal.response(Encoding::Json),
        });
    }
    if head.method == Method::GET && matches!(path, "/" | "/health") {
        return Ok(reply::whole(200, "text/plain", "anabranch local: Kinesis, DynamoDB\n"));
    }
    let encoding = Encoding::of(&head.headers);
    if head.method != Method::POST {
        let message = format!("{} {path} is not supported", head.method);
        let refusal = ApiError::new(ErrorKind::UnknownOperation, message);
        return Ok(reply::error(&refusal, encoding));
    }
    let body = match read(body, service.client_timeout).await {
        Ok(body) => body,
        Err(refusal) => return Ok(refusal.response(encoding)),
    };
    if let Some(operation) = path.strip_prefix(METRICS_PATH) {
        return Ok(metrics(service, operation, CloudWatchProtocol::Rpc, &body));
    }
    match RequestTarget::of(&head.headers) {
        RequestTarget::Kinesis(operation) => {
            dispatch::answer(service, operation, encoding, &body).await
        }
        RequestTarget::DynamoDb(operation) => {
            let (status, json) = service.tables.call(operation, body).await;
            Ok(checked(status, json))
        }
        RequestTarget::CloudWatch(operation) => {
            Ok(metrics(service, operation, CloudWatchProtocol::Json, &body))
        }
        RequestTarget::Unknown if is_form(&head.headers) => Ok(query(service, &body)),
        RequestTarget::Unknown => Ok(unknown(encoding)),
    }
}

/// Creates a DynamoDB response. Clients compare the body with the checksum in the header, and the
/// Go SDK complains about every response without one.
fn checked(status: u16, json: impl Into<Bytes>) -> Response<ResponseBody> {
    let json = json.into();
    let checksum = http::HeaderValue::from(crc32fast::hash(&json));
    let mut response = reply::whole(status, "application/x-amz-json-1.0", json);
    response.headers_mut().insert("x-amz-crc32", checksum);
    response
}

fn unknown(encoding: Encoding) -> Response<ResponseBody> {
    reply::error(&ApiError::new(ErrorKind::UnknownOperation, ""), encoding)
}

fn is_form(headers: &http::HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-www-form-urlencoded"))
}

/// Answers a request of the Query protocol, in which the operation is a field of the form.
fn query(service: &Service, body: &[u8]) -> Response<ResponseBody> {
    let action = body.split(|byte| *byte == b'&').find_map(|field| field.strip_prefix(b"Action="));
    match action {
        Some(b"PutMetricData") => {
            metrics(service, "PutMetricData", CloudWatchProtocol::Query, body)
        }
        _ => unknown(Encoding::Json),
    }
}

fn metrics(
    service: &Service,
    operation: &str,
    protocol: CloudWatchProtocol,
    body: &[u8],
) -> Response<ResponseBody> {
    if operation != "PutMetricData" {
        return unknown(Encoding::Json);
    }
    let (content_type, answer) = service.metrics.accept(protocol, body);
    let mut response = reply::whole(200, content_type, answer);
    if protocol == CloudWatchProtocol::Rpc {
        let protocol = http::HeaderValue::from_static("rpc-v2-cbor");
        response.headers_mut().insert("smithy-protocol", protocol);
    }
    response
}

/// Reason why a body was not read.
enum BodyError {
    /// The body exceeds [`BODY_MAX_BYTES`].
    TooLarge,
    /// The client stopped in the middle of the body.
    Cut,
    /// The client keeps the server waiting for the body.
    Slow,
}

impl BodyError {
    fn response(&self, encoding: Encoding) -> Response<ResponseBody> {
        let unreadable = ErrorKind::Serialization;
        let (status, kind, message) = match self {
            Self::TooLarge => {
                (413, unreadable, format!("The body exceeds {BODY_MAX_BYTES} bytes."))
            }
            Self::Cut => (400, unreadable, "The body ended too early.".to_owned()),
            Self::Slow => {
                (408, ErrorKind::RequestTimeout, "The body arrived too slowly.".to_owned())
            }
        };
        let refusal = ApiError::new(kind, message);
        let mut response = reply::error(&refusal, encoding);
        *response.status_mut() = http::StatusCode::from_u16(status).expect("a constant");
        response
    }
}

/// Reads a whole body into one buffer. Some of it must arrive within each `stall`, and all of it at
/// the rate of [`SLOWEST_LINE`].
async fn read(body: Incoming, stall: Duration) -> Result<Bytes, BodyError> {
    let bytes = body.size_hint().upper().unwrap_or(BODY_MAX_BYTES as u64);
    let on_a_slow_line = Duration::from_millis(bytes.saturating_mul(1_000) / SLOWEST_LINE);
    let whole = read_whole(body, stall);
    tokio::time::timeout(stall.saturating_add(on_a_slow_line), whole)
        .await
        .unwrap_or(Err(BodyError::Slow))
}

async fn read_whole(mut body: Incoming, stall: Duration) -> Result<Bytes, BodyError> {
    let announced = body.size_hint().lower();
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    if announced > BODY_MAX_BYTES {
        return Err(BodyError::TooLarge);
    }
    let mut whole = buffer::take(announced);
    let slow = |_| BodyError::Slow;
    while let Some(frame) = tokio::time::timeout(stall, body.frame()).await.map_err(slow)? {
        let Ok(data) = frame.map_err(|_| BodyError::Cut)?.into_data() else { continue };
        if whole.len() + data.len() > BODY_MAX_BYTES {
            return Err(BodyError::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(buffer::share(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_dynamodb_carry_their_checksum() {
        let response = checked(200, "{\"TableNames\":[]}");
        assert_eq!(response.headers()["x-amz-crc32"], "1315925753");
        assert_eq!(response.headers()["content-type"], "application/x-amz-json-1.0");
    }
}
