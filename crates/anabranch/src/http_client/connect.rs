//! Makes a connection: TCP, proxy tunnel, TLS, and the HTTP version chosen by ALPN.

use super::connection::{Connection, ConnectionCounter, RequestForm, Transport};
use super::error::ConnectError;
use super::liveness::{Liveness, MonitoredTransport};
use super::proxy::{Proxy, ProxyRules, host_and_port};
use super::trust::Trust;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::uri::Scheme;
use http::{Method, Request, Uri};
use hyper::client::conn::http1;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tower_service::Service;

/// Bytes of a request that the kernel buffers before they are sent. With more, a PING would queue
/// behind them, and a slow line would look like a silent one.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 64 * 1024;
/// Time without a segment after which TCP sends a keep-alive probe.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// Makes connections.
#[derive(Debug)]
pub(super) struct Connector {
    tcp: HttpConnector,
    trust: Trust,
    proxies: ProxyRules,
    /// Reason why no connection can be made, found when the client was set up.
    mistake: Option<String>,
    pub(super) counter: Arc<ConnectionCounter>,
}

impl Connector {
    pub(super) fn new(trust: Trust, proxies: ProxyRules) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        Self { tcp, trust, proxies, mistake: None, counter: Arc::default() }
    }

    /// Returns a connector that always fails with `mistake`.
    pub(super) fn failing(mistake: String) -> Self {
        Self { mistake: Some(mistake), ..Self::new(Trust::system(), ProxyRules::none()) }
    }

    /// Makes a connection for requests to `uri`.
    pub(super) async fn connect(&self, uri: &Uri) -> Result<Connection, ConnectError> {
        if let Some(mistake) = &self.mistake {
            return Err(ConnectError::Setup(mistake.clone()));
        }
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        if uri.host().is_none() || !(is_tls || uri.scheme() == Some(&Scheme::HTTP)) {
            return Err(ConnectError::Address { uri: uri.to_string() });
        }
        let target = host_and_port(uri);
        let counter = Arc::clone(&self.counter);
        let proxy = self.proxies.proxy_for(uri);
        let life = Liveness::new();
        let transport = match &proxy {
            None => self.tcp(uri, target.clone(), &life).await?,
            Some(proxy) => self.to_proxy(proxy, &life).await?,
        };
        if !is_tls {
            let form = match proxy {
                None => RequestForm::Origin,
                Some(Proxy { authorization, .. }) => RequestForm::Absolute { authorization },
            };
            return Connection::http1(transport, &target, form, life, counter).await;
        }
        let transport = match &proxy {
            None => transport,
            Some(proxy) => tunnel(transport, proxy, &target).await?,
        };
        let settings = Arc::clone(&self.trust.settings()?.service);
        match handshake(transport, settings, uri).await? {
            (transport, Alpn::Http2) => Connection::http2(transport, &target, life, counter).await,
            (transport, Alpn::Http1) => {
                Connection::http1(transport, &target, RequestForm::Origin, life, counter).await
            }
        }
    }

    async fn tcp(
        &self,
        uri: &Uri,
        target: String,
        life: &Arc<Liveness>,
    ) -> Result<Box<dyn Transport>, ConnectError> {
        let connected = self.tcp.clone().call(uri.clone()).await;
        let tcp = connected.map_err(|error| ConnectError::Tcp { target, source: error.into() })?;
        // Only slow lines suffer if the option cannot be set.
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(tcp.inner()).set_tcp_notsent_lowat(UNSENT_BYTES);
        Ok(Box::new(MonitoredTransport { transport: tcp, life: Arc::clone(life) }))
    }

    async fn to_proxy(
        &self,
        proxy: &Proxy,
        life: &Arc<Liveness>,
    ) -> Result<Box<dyn Transport>, ConnectError> {
        let name = format!("proxy {}", host_and_port(&proxy.uri));
        let transport = self.tcp(&proxy.uri, name, life).await?;
        if proxy.uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(transport);
        }
        let settings = Arc::clone(&self.trust.settings()?.proxy);
        Ok(handshake(transport, settings, &proxy.uri).await?.0)
    }
}

/// The HTTP version chosen by the server.
enum Alpn {
    Http1,
    Http2,
}

async fn handshake(
    transport: Box<dyn Transport>,
    settings: Arc<ClientConfig>,
    uri: &Uri,
) -> Result<(Box<dyn Transport>, Alpn), ConnectError> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| ConnectError::Address { uri: uri.to_string() })?;
    let connector = tokio_rustls::TlsConnector::from(settings);
    let connected = connector.connect(name, TokioIo::new(transport)).await;
    let tls =
        connected.map_err(|source| ConnectError::Tls { target: host_and_port(uri), source })?;
    let chosen = tls.get_ref().1.alpn_protocol();
    let alpn = if chosen == Some(b"h2") { Alpn::Http2 } else { Alpn::Http1 };
    Ok((Box::new(TokioIo::new(tls)), alpn))
}

/// Asks a proxy for a tunnel to `target`, given as host and port.
async fn tunnel(
    transport: Box<dyn Transport>,
    proxy: &Proxy,
    target: &str,
) -> Result<Box<dyn Transport>, ConnectError> {
    let refused = |reason: String| ConnectError::Proxy {
        proxy: host_and_port(&proxy.uri),
        target: target.to_owned(),
        reason,
    };
    let broken = |error: hyper::Error| refused(error.to_string());
    let (mut sender, connection) = http1::handshake(transport).await.map_err(broken)?;
    let mut request = Request::builder().method(Method::CONNECT).uri(target).header(HOST, target);
    if let Some(authorization) = &proxy.authorization {
        request = request.header(PROXY_AUTHORIZATION, authorization);
    }
    let request = request.body(String::new());
    let request = request.map_err(|error| refused(error.to_string()))?;
    let answer = async {
        let reply = sender.send_request(request).await.map_err(broken)?;
        if !reply.status().is_success() {
            return Err(refused(format!("it answered {}", reply.status())));
        }
        hyper::upgrade::on(reply).await.map_err(broken)
    };
    // The connection passes its transport to the tunnel, and ends.
    let mut connection = connection.with_upgrades();
    let mut answer = std::pin::pin!(answer);
    let upgraded = tokio::select! {
        biased;
        answer = &mut answer => answer?,
        _ = &mut connection => answer.await?,
    };
    Ok(Box::new(upgraded))
}
