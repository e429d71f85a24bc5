//! The HTTP client of everything that calls AWS: consumer, producer, lease store, CLI, daemon.
//!
//! ```text
//! SDK ── HttpRequest ──► call ──► pool ── idle ──► Connection ──► Reply ── its end ──► pool
//!                                  └── none idle ──► connect: TCP ► proxy ► TLS ► h2 or http/1.1
//! ```
//!
//! AWS speaks TLS and negotiates HTTP/2 by ALPN. The usual pools then share one connection among
//! all calls to a host, where a slow reader, a low limit of concurrent streams or a connection that
//! went silent holds up every call. This client gives each call a connection of its own:
//!
//! 1. **One call at a time on a connection**, with HTTP/2 as with HTTP/1.1. A subscription that is
//!    not read fills its own flow-control window and no other, and the server's limit of concurrent
//!    streams is never reached. A connection goes back to the pool when its reply was read to the
//!    end, and is closed when the call was dropped before that.
//! 2. **A silent connection is left after 11 s.** With HTTP/2 the client sends a PING when nothing
//!    came for 4 s ([`PING_AFTER`]) while a call is under way, and closes the connection when for
//!    10 s ([`SILENCE_TIMEOUT`]) nothing came and no part of the request could be sent, and still
//!    nothing a second later: a process that was frozen has that long to read. HTTP/1.1 has
//!    no PING: there the time-out of the call does it. Both also close the idle connections that are
//!    as old: a network path that died took them along.
//! 3. **A refused call was not applied.** A connection that did not come about, a stream reset with
//!    `REFUSED_STREAM` and a stream above the last one of a GOAWAY end in an error whose
//!    [`CallError::is_not_applied`] is true. A request that the connection did not take is sent on
//!    another one at once.
//! 4. **The environment counts**: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` (each in
//!    lower case too) and `AWS_CA_BUNDLE`, a PEM file that replaces the system's authorities.
//! 5. **Idle connections are not used after 20 s** ([`IDLE_TIMEOUT`]), and closed within 5 s more. At
//!    most 32 connections to one host are being made at a time ([`CONNECTING_MAX`]); a call whose turn
//!    comes takes one that has become idle meanwhile.
//!
//! The clocks, in the order in which they run:
//!
//! | clock | covers | set by |
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

/// How long a connection may take to come about, unless the SDK's configuration says otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection without a call is kept.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// After how long without a frame an HTTP/2 connection with a call is asked for a sign of life.
pub const PING_AFTER: Duration = Duration::from_secs(4);
/// How long an HTTP/2 connection with a call may be without a sign of life: nothing is received,
/// and nothing of the request is sent.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many connections to one host are being made at a time.
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

    /// Makes a client as [`HttpClient::from_env`] does. A mistake in the environment fails every
    /// call, for those who can't return it now.
    pub fn from_env_deferred() -> Self {
        Self::from_env().unwrap_or_else(|mistake| Self {
            pool: HttpPool::new(connect::Connector::failing(mistake.to_string())),
        })
    }

    /// Makes a client that trusts the authorities of a PEM text and no others, and uses no proxy.
    pub fn with_trusted_pem(pem: &str) -> Result<Self, HttpSetupError> {
        Ok(Self::new(Trust::pem(pem.as_bytes())?, ProxyRules::none()))
    }

    fn new(trust: Trust, proxies: ProxyRules) -> Self {
        Self { pool: HttpPool::new(connect::Connector::new(trust, proxies)) }
    }

    /// Returns how many connections were made and are open.
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

/// Calls with the time-outs of one configuration of the SDK.
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
                ConnectorError::user(format!("the request can't be sent: {error}").into())
            })?;
            let reply = pool.call(request, connect_timeout, first_byte).await;
            let reply = reply.map_err(CallError::into_connector_error)?;
            let reply = reply.map(SdkBody::from_body_1_x);
            HttpResponse::try_from(reply).map_err(|error| {
                ConnectorError::other(format!("the reply can't be read: {error}").into(), None)
            })
        })
    }
}
