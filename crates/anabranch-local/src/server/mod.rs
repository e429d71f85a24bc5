//! The HTTP server: one port for Kinesis, DynamoDB, CloudWatch's metrics and the control endpoint,
//! and a second one for the same over TLS.
//!
//! ```text
//! http (sockets) ─→ route (body, target) ┬→ dispatch   ─→ Engine ─→ reply      (Kinesis)
//!  └ handshake (TLS)                     ├→ dynamodb   ─→ dynoxide
//!                                        ├→ cloudwatch ─→ counters
//!                                        └→ control    ─→ faults, clock, state
//! ```

mod http;
mod handshake;
mod lingering_close;
mod client_timeout;
mod connections;
mod route;
mod target;
mod dispatch;
mod fault_delay;
mod subscribe;
mod reply;
mod body;
mod dynamodb;
mod cloudwatch;
mod control;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub use self::connections::Connections;
use self::connections::Counter;
use self::http::ServedPort;
use self::reply::RequestIds;
use self::route::Service;
use crate::engine::Engine;
use crate::tls::ServerTls;

pub(crate) use self::cloudwatch::ReceivedMetrics;
pub(crate) use self::dynamodb::Tables;
pub(crate) use self::http::HttpOptions;

/// Interval between checks for records past retention, in milliseconds.
const FREE_MEMORY_EACH_MS: u64 = 60_000;

/// A running server. Dropping it stops it at once; [`Server::stop`] lets requests finish.
#[derive(Debug)]
pub(crate) struct Server {
    plain: ListeningPort,
    tls: Option<ListeningPort>,
    /// Metrics received by `PutMetricData`.
    metrics: Arc<ReceivedMetrics>,
    /// Set to `true` to stop the server.
    stop: watch::Sender<bool>,
    /// The accept loops, which own all connections, and the task that frees memory.
    tasks: JoinSet<()>,
}

/// A port of a running server.
#[derive(Debug)]
struct ListeningPort {
    address: SocketAddr,
    connections: Arc<Counter>,
}

impl ListeningPort {
    fn on(listener: &TcpListener) -> io::Result<Self> {
        Ok(Self { address: listener.local_addr()?, connections: Arc::default() })
    }
}

/// Periodically frees the memory of records past retention, by the engine's clock. A shard without
/// puts and reads does not free its own.
async fn free_memory(engine: Arc<Engine>, mut stop: watch::Receiver<bool>) {
    loop {
        let due_ms = engine.clock().now_ms().saturating_add(FREE_MEMORY_EACH_MS);
        tokio::select! {
            biased;
            () = http::asked(&mut stop) => return,
            () = engine.clock().sleep_until(due_ms) => engine.free_memory(),
        }
    }
}

impl Server {
    /// Serves an engine on a listener, and with TLS on another, on the current runtime.
    pub(crate) fn start(
        listener: TcpListener,
        tls: Option<(TcpListener, ServerTls)>,
        options: HttpOptions,
        engine: Arc<Engine>,
        tables: Tables,
    ) -> io::Result<Self> {
        let plain = ListeningPort::on(&listener)?;
        let tls_port = tls.as_ref().map(|(listener, _)| ListeningPort::on(listener)).transpose()?;
        let (stop, stopped) = watch::channel(false);
        let metrics = Arc::new(ReceivedMetrics::default());
        let service = Arc::new(Service {
            engine,
            tables,
            metrics: Arc::clone(&metrics),
            ids: RequestIds::default(),
            connections: Arc::clone(&plain.connections),
            tls_connections: tls_port.as_ref().map(|port| Arc::clone(&port.connections)),
            stop: stopped.clone(),
            client_timeout: options.client_timeout,
        });
        let mut tasks = JoinSet::new();
        let mut serve = |listener, acceptor, connections: &Arc<Counter>| {
            let connections = Arc::clone(connections);
            let port = ServedPort { listener, acceptor, options, connections };
            tasks.spawn(http::serve(port, Arc::clone(&service), stopped.clone()));
        };
        serve(listener, None, &plain.connections);
        if let (Some((listener, tls)), Some(port)) = (tls, &tls_port) {
            serve(listener, Some(TlsAcceptor::from(tls.config)), &port.connections);
        }
        tasks.spawn(free_memory(Arc::clone(&service.engine), stopped));
        Ok(Self { plain, tls: tls_port, metrics, stop, tasks })
    }

    /// Returns the address of the port without TLS.
    pub(crate) fn address(&self) -> SocketAddr {
        self.plain.address
    }

    /// Returns the address of the port with TLS, if there is one.
    pub(crate) fn tls_address(&self) -> Option<SocketAddr> {
        self.tls.as_ref().map(|port| port.address)
    }

    /// Returns the connection counts of the port without TLS.
    pub(crate) fn connections(&self) -> Connections {
        self.plain.connections.now()
    }

    /// Returns the connection counts of the port with TLS, if there is one.
    pub(crate) fn tls_connections(&self) -> Option<Connections> {
        self.tls.as_ref().map(|port| port.connections.now())
    }

    /// Returns the metrics received by `PutMetricData`.
    pub(crate) fn metrics(&self) -> &ReceivedMetrics {
        &self.metrics
    }

    /// Stops the server: accepts no new requests, ends subscriptions, and waits up to 5 s for
    /// requests in flight.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}
