//! HTTP client for all AWS calls: consumer, producer, lease store, CLI and daemon.
//!
//! ```text
//! SDK ── HttpRequest ──► call ──► pool ── idle ──► Connection ──► Reply ── its end ──► pool
//!                                  └── none idle ──► connect: TCP ► proxy ► TLS ► h2 or http/1.1
//! ```
//!
//! AWS negotiates HTTP/2 over TLS by ALPN. Common connection pools then share one connection among
//! all calls to a host. A slow reader, a low limit of concurrent streams or a connection that went
//! silent then delays every call. This client gives each call its own connection:
//!
//! 1. **One call at a time per connection**, with HTTP/2 as with HTTP/1.1. A subscription that is
//!    not read fills only its own flow-control window, and the server's limit of concurrent streams
//!    is never reached. A connection returns to the pool once its reply has been read to the end.
//!    It is closed if the call is dropped before that.
//! 2. **A silent connection is closed after 11 s.** With HTTP/2 the client sends a PING when a call
//!    is in progress and nothing was received for 4 s ([`PING_AFTER`]). It closes the connection
//!    when nothing was received and no part of the request was sent for 10 s ([`SILENCE_TIMEOUT`]),
//!    and still nothing one second later. That second lets a process that was frozen read what has
//!    arrived. HTTP/1.1 has no PING; there the time-out of the call applies. In both versions, a
//!    call that fails after a second or more also closes the connections that were idle before it,
//!    because a dead network path breaks them as well.
//! 3. **A refused call was not applied.** [`CallError::is_not_applied`] is true for a connection
//!    that could not be made, a stream reset with `REFUSED_STREAM`, and a stream above the last
//!    stream id of a GOAWAY. A request that an idle connection did not accept is sent on another
//!    one at once.
//! 4. **The environment is respected**: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` (each
//!    in lower case too) and `AWS_CA_BUNDLE`, a PEM file that replaces the system's authorities.
//! 5. **Idle connections are not used after 20 s** ([`IDLE_TIMEOUT`]), and are closed within 5 s
//!    more. At most 32 connections per host are being made at a time ([`CONNECTING_MAX`]). A call
//!    that has waited its turn prefers a connection that has become idle in the meantime.
//!
//! The time-outs, in the order in which they apply:
//!
//! | time-out | covers | set by |
//! |---|---|---|
//! | connect | waiting for a turn, DNS, TCP, proxy, TLS | the SDK's `connect_timeout`, else 5 s |
//! | first byte | upload and the service's work: the SDK's `read_timeout`, plus a second for each 128 KiB of the request | the SDK's `read_timeout`, else none |
//! | body | the rest of the reply | the SDK's stalled-stream protection |
//! | all | everything above | the SDK's attempt time-out, or the caller that drops the call |

mod error;
mod trust;
mod proxy;
mod body;
mod tasks;
mod liveness;
mod connection;
mod connect;
mod pool;

pub use connection::Connections;
pub use error::{CallError, ConnectError, HttpSetupError};

use crate::stream::api::upload_time;
use aws_smithy_runtime_api::client::connector_metadata::ConnectorMetadata;
use aws_smithy_runtime_api::client::http::{
    HttpClient as SdkHttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use pool::HttpPool;
use proxy::ProxyRules;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use trust::Trust;

/// Default time-out for making a connection. The SDK's configuration overrides it.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum age of an idle connection that is still used.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without a received frame after which an HTTP/2 connection with a call sends a PING.
pub const PING_AFTER: Duration = Duration::from_secs(4);
/// Time without a sign of life after which an HTTP/2 connection with a call is dead: nothing is
/// received, and nothing of the request is sent.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections to one host that are being made at a time.
pub const CONNECTING_MAX: usize = 32;
/// An HTTP client for the AWS SDK. Clones share their connections.
#[derive(Clone, Debug)]
pub struct HttpClient {
    pool: Arc<HttpPool>,
}

impl HttpClient {
    /// Makes a client with the proxies and the certificate authorities of the environment.
    pub fn from_env() -> Result<Self, HttpSetupError> {
        let bundle = std::env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
        let trust = match bundle {
            None => Trust::system(),
            Some(path) => Trust::bundle(Path::new(&path))?,
        };
        Ok(Self::new(trust, ProxyRules::from_env()?))
    }

    /// Makes a client as [`HttpClient::from_env`] does, for callers that cannot return an error
    /// now. A mistake in the environment makes every call fail.
    pub fn from_env_deferred() -> Self {
        Self::from_env().unwrap_or_else(|mistake| Self {
            pool: HttpPool::new(connect::Connector::failing(mistake.to_string())),
        })
    }

    /// Makes a client that trusts only the authorities in `pem`, and uses no proxy.
    pub fn with_trusted_pem(pem: &str) -> Result<Self, HttpSetupError> {
        Ok(Self::new(Trust::pem(pem.as_bytes())?, ProxyRules::none()))
    }

    fn new(trust: Trust, proxies: ProxyRules) -> Self {
        Self { pool: HttpPool::new(connect::Connector::new(trust, proxies)) }
    }

    /// Returns the numbers of connections made so far and open now.
    pub fn connections(&self) -> Connections {
        self.pool.connections()
    }
}

impl SdkHttpClient for HttpClient {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(HttpCalls {
            pool: Arc::clone(&self.pool),
            connect_timeout: settings.connect_timeout().unwrap_or(CONNECT_TIMEOUT),
            read_timeout: settings.read_timeout(),
        })
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        Some(ConnectorMetadata::new("anabranch", Some(env!("CARGO_PKG_VERSION").into())))
    }
}

/// SDK connector with the time-outs of one SDK configuration.
#[derive(Debug)]
struct HttpCalls {
    pool: Arc<HttpPool>,
    connect_timeout: Duration,
    read_timeout: Option<Duration>,
}

impl HttpConnector for HttpCalls {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (pool, connect_timeout) = (Arc::clone(&self.pool), self.connect_timeout);
        let bytes = request.body().content_length().unwrap_or(0);
        let first_byte = self.read_timeout.map(|timeout| timeout + upload_time(bytes));
        HttpConnectorFuture::new(async move {
            let request = request.try_into_http1x().map_err(|error| {
                ConnectorError::user(format!("cannot send the request: {error}").into())
            })?;
            let reply = pool.call(request, connect_timeout, first_byte).await;
            let reply = reply.map_err(CallError::into_connector_error)?;
            let reply = reply.map(SdkBody::from_body_1_x);
            HttpResponse::try_from(reply).map_err(|error| {
                ConnectorError::other(format!("cannot read the reply: {error}").into(), None)
            })
        })
    }
}
