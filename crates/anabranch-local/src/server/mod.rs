//! The HTTP server: one port for Kinesis, DynamoDB, CloudWatch's metrics and the control endpoint.
//!
//! ```text
//! http (sockets) → route (body, target) → dispatch ─ Kinesis → Engine → reply
//!                                       ├ dynamodb   → dynoxide
//!                                       ├ cloudwatch → counters
//!                                       └ control    → faults, clock, state
//! ```

mod http;
mod route;
mod target;
mod dispatch;
mod hold;
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

use self::reply::RequestIds;
use self::route::Service;
use crate::engine::Engine;

pub(crate) use self::cloudwatch::Metrics;
pub(crate) use self::dynamodb::Tables;

/// A running server. Dropping it ends it at once; [`Server::stop`] lets requests finish.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens.
    address: SocketAddr,
    /// What came in by `PutMetricData`.
    metrics: Arc<Metrics>,
    /// Says `true` when the server shall stop.
    stop: watch::Sender<bool>,
    /// The accept loop, which owns all connections.
    tasks: JoinSet<()>,
}

impl Server {
    /// Serves an engine on a listener, on the current runtime.
    pub(crate) fn start(
        listener: TcpListener,
        engine: Arc<Engine>,
        tables: Tables,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let metrics = Arc::new(Metrics::default());
        let service = Service {
            engine,
            tables,
            metrics: Arc::clone(&metrics),
            ids: RequestIds::default(),
            stop: stopped.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(listener, Arc::new(service), stopped));
        Ok(Self { address, metrics, stop, tasks })
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What came in by `PutMetricData`.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Takes no new requests, ends subscriptions, and waits for requests in flight.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}
