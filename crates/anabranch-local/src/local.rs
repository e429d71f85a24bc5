//! A local stream in one call: an engine and its server on a free port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::options::EngineOptions;
use crate::server::{Connections, HttpOptions, Server, Tables};
use crate::tls::{ServerTls, Tls, TlsError};

/// A running local stream. Dropping it stops it at once; [`Local::stop`] lets requests finish
/// first.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let local = anabranch_local::Local::start().await?;
/// println!("export AWS_ENDPOINT_URL_KINESIS={}", local.endpoint());
/// local.stop().await;
/// # Ok::<(), anabranch_local::LocalStartError>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Local {
    engine: Arc<Engine>,
    server: Server,
    /// The certificate that clients of the TLS port must trust, as PEM.
    ca_pem: Option<String>,
}

/// Error of a local stream that did not start.
#[derive(Debug, thiserror::Error)]
pub enum LocalStartError {
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The address for TLS is in use, or does not belong to this machine.
    #[error("cannot listen with TLS on {address}: {source}")]
    ListenTls {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No usable certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The DynamoDB tables cannot be opened.
    #[error("cannot open the DynamoDB tables{}: {reason}", at(.file.as_ref()))]
    Tables {
        /// The file of the tables; `None` for tables in memory.
        file: Option<PathBuf>,
        /// The database's message.
        reason: String,
    },
}

fn at(file: Option<&PathBuf>) -> String {
    file.map_or_else(String::new, |file| format!(" in {}", file.display()))
}

/// Builder of a [`Local`].
#[derive(Debug)]
pub struct LocalBuilder {
    address: SocketAddr,
    options: EngineOptions,
    clock: Clock,
    engine: Option<Arc<Engine>>,
    tables: Option<PathBuf>,
    tls: Option<Tls>,
    tls_port: u16,
    http: HttpOptions,
}

impl LocalBuilder {
    /// Sets the address to listen on. Default: a free port on 127.0.0.1.
    #[must_use]
    pub fn with_address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Sets the options of the engine. Default: [`EngineOptions::default`].
    #[must_use]
    pub fn with_options(mut self, options: EngineOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the engine's source of time. Default: the system clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Serves an existing engine, which keeps its own options and clock.
    #[must_use]
    pub fn with_engine(mut self, engine: Arc<Engine>) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Keeps the DynamoDB tables in a file. Default: in memory.
    #[must_use]
    pub fn with_tables_file(mut self, file: PathBuf) -> Self {
        self.tables = Some(file);
        self
    }

    /// Listens with TLS as well, on a second port of the same address. Offers HTTP/2 and HTTP/1.1
    /// by ALPN. Default: no TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the port for TLS. Default: 0, which takes a free one.
    #[must_use]
    pub fn with_tls_port(mut self, port: u16) -> Self {
        self.tls_port = port;
        self
    }

    /// Sets the maximum number of concurrent HTTP/2 streams on one connection, at least 1, with and
    /// without TLS. Default: 200.
    #[must_use]
    pub fn with_max_concurrent_streams(mut self, streams: u32) -> Self {
        self.http.max_concurrent_streams = Some(streams.max(1));
        self
    }

    /// Sets how long the server waits for a client: for the head of a request, for the next bytes
    /// of a body, or for the client to take more of a reply. At least 4 ms. Default: one minute.
    #[must_use]
    pub fn with_client_timeout(mut self, timeout: Duration) -> Self {
        self.http.client_timeout = timeout.max(Duration::from_millis(4));
        self
    }

    /// Ends each connection after this many requests, at least 1: HTTP/2 by a GOAWAY, HTTP/1.1 by
    /// `connection: close`. Requests in flight are answered. Default: never.
    #[must_use]
    pub fn with_goaway_after(mut self, requests: u64) -> Self {
        self.http.goaway_after = Some(requests.max(1));
        self
    }

    /// Starts the local stream on the current runtime.
    pub async fn start(self) -> Result<Local, LocalStartError> {
        let file = self.tables;
        let tables = match &file {
            None => Tables::in_memory(),
            Some(file) => Tables::on_disk(file),
        };
        let tables = tables.map_err(|reason| LocalStartError::Tables { file, reason })?;
        let address = self.address;
        let refused = |source| LocalStartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let tls = match &self.tls {
            None => None,
            Some(tls) => Some(listen_tls(address.ip(), self.tls_port, tls).await?),
        };
        let ca_pem = tls.as_ref().map(|(_, tls)| tls.ca_pem.clone());
        let engine = self.engine;
        let engine = engine.unwrap_or_else(|| Arc::new(Engine::new(self.options, self.clock)));
        let server = Server::start(listener, tls, self.http, Arc::clone(&engine), tables);
        Ok(Local { engine, server: server.map_err(refused)?, ca_pem })
    }
}

async fn listen_tls(
    host: IpAddr,
    port: u16,
    tls: &Tls,
) -> Result<(TcpListener, ServerTls), LocalStartError> {
    let address = SocketAddr::new(host, port);
    let tls = tls.server(host)?;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| LocalStartError::ListenTls { address, source })?;
    Ok((listener, tls))
}

/// Returns the address by which this machine reaches `listening`. A client cannot connect to an
/// unspecified address such as 0.0.0.0, so that becomes the loopback address.
fn reachable(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listening.port())
}

impl Local {
    /// Starts with every default: a free port of 127.0.0.1, everything in memory.
    pub async fn start() -> Result<Self, LocalStartError> {
        Self::builder().start().await
    }

    /// Returns a builder with every default.
    pub fn builder() -> LocalBuilder {
        LocalBuilder {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            options: EngineOptions::default(),
            clock: Clock::system(),
            engine: None,
            tables: None,
            tls: None,
            tls_port: 0,
            http: HttpOptions::default(),
        }
    }

    /// Returns the address of the port without TLS.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the endpoint URL for clients of Kinesis, DynamoDB and CloudWatch. If the server
    /// listens on every address, the URL contains the loopback address.
    pub fn endpoint(&self) -> String {
        format!("http://{}", reachable(self.address()))
    }

    /// Returns the address of the port with TLS, if there is one.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.server.tls_address()
    }

    /// Returns the `https` endpoint URL for clients, if there is a port with TLS. They must trust
    /// [`Local::ca_pem`].
    pub fn tls_endpoint(&self) -> Option<String> {
        self.tls_address().map(|address| format!("https://{}", reachable(address)))
    }

    /// Returns the certificate that clients must trust, as PEM, if there is a port with TLS. It is
    /// the authority's certificate, or the content of the certificate file that was given.
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// Returns the connection counts of the port without TLS.
    pub fn connections(&self) -> Connections {
        self.server.connections()
    }

    /// Returns the connection counts of the port with TLS, if there is one.
    pub fn tls_connections(&self) -> Option<Connections> {
        self.server.tls_connections()
    }

    /// Returns the engine, to inspect it or to inject faults.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the newest metric data received by CloudWatch's `PutMetricData`, oldest first. Each
    /// datum is unchanged except for its added `Namespace`.
    pub fn metric_data(&self) -> Vec<serde_json::Value> {
        self.server.metrics().newest()
    }

    /// Stops the server: accepts no new requests, ends subscriptions, and waits up to 5 s for
    /// requests in flight.
    pub async fn stop(self) {
        self.server.stop().await;
    }

    /// Returns a configuration for every client of the AWS SDK for Rust: endpoint, region, dummy
    /// credentials (which are not checked), and an HTTP client without TLS.
    #[cfg(feature = "sdk")]
    pub fn sdk_config(&self) -> aws_types::SdkConfig {
        crate::sdk::config(self.endpoint(), &self.engine.options().region, None)
    }

    /// Returns the same for the port with TLS, if there is one. Its HTTP client trusts only
    /// [`Local::ca_pem`].
    ///
    /// # Panics
    ///
    /// Panics if [`Tls::from_pem_files`] was given a certificate that is no trust anchor.
    #[cfg(feature = "sdk")]
    pub fn tls_sdk_config(&self) -> Option<aws_types::SdkConfig> {
        let (endpoint, ca_pem) = (self.tls_endpoint()?, self.ca_pem()?);
        Some(crate::sdk::config(endpoint, &self.engine.options().region, Some(ca_pem)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_that_can_be_connected_to() {
        for (listening, endpoint) in [
            ("0.0.0.0:4567", "127.0.0.1:4567"),
            ("[::]:4567", "[::1]:4567"),
            ("192.0.2.7:80", "192.0.2.7:80"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            let listening: SocketAddr = listening.parse().unwrap();
            assert_eq!(reachable(listening).to_string(), endpoint);
        }
    }
}
