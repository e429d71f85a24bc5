//! Pool of idle connections by host, and the path of a call through it.

use super::body::{ReplyBody, RequestBody};
use super::connect::Connector;
use super::connection::{Connection, Connections, Unanswered};
use super::error::{CallError, ConnectError};

use super::{CONNECTING_MAX, IDLE_TIMEOUT};
use crate::clock::Clock;
use aws_smithy_types::body::SdkBody;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// A call dropped after at least this long may have met a dead network path.
const SUSPICIOUS_MS: u64 = 1_000;

/// The connections of a client.
#[derive(Debug)]
pub(super) struct HttpPool {
    connector: Connector,
    clock: Clock,
    hosts: Mutex<HashMap<PoolKey, Arc<HostPool>>>,
    /// The task that closes expired idle connections.
    reaper: Mutex<JoinSet<()>>,
}

/// Key of a host: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    scheme: Option<Scheme>,
    authority: Option<Authority>,
}

/// The connections to one host.
#[derive(Debug)]
pub(super) struct HostPool {
    /// Idle connections. The most recently used one is last and is taken first, so that the others
    /// expire.
    idle: Mutex<Vec<IdleConnection>>,
    /// Permits for making a connection.
    connecting: Semaphore,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Connection,
    since_ms: u64,
}

impl HttpPool {
    pub(super) fn new(connector: Connector) -> Arc<Self> {
        Arc::new(Self {
            connector,
            clock: Clock::machine(),
            hosts: Mutex::default(),
            reaper: Mutex::default(),
        })
    }

    pub(super) fn connections(&self) -> Connections {
        self.connector.counter.count()
    }

    /// Sends a request and waits for the head of its reply.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: Request<SdkBody>,
        connect_timeout: Duration,
        first_byte: Option<Duration>,
    ) -> Result<Response<ReplyBody>, CallError> {
        let host = self.host(request.uri());
        let mut request = request.map(RequestBody::new);
        let uploaded = request.body().uploaded();
        loop {
            let (connection, is_fresh) =
                self.connection(&host, request.uri(), connect_timeout).await?;
            let mut lent = LeasedConnection::new(connection, Arc::clone(self), Arc::clone(&host));
            let sent = with_timeout(first_byte, lent.connection().send(request)).await;
            match sent.ok_or(CallError::TimedOut(first_byte.unwrap_or_default()))? {
                Ok(reply) => return Ok(reply.map(|body| ReplyBody::new(body, lent, uploaded))),
                Err(Unanswered::Failed(error)) => return Err(error),
                // A server that closes a new connection would close the next one too.
                Err(Unanswered::NotTaken(_)) if is_fresh => return Err(CallError::NotTaken),
                // The server closed the connection while it was idle.
                Err(Unanswered::NotTaken(again)) => request = *again,
            }
            lent.discard();
        }
    }

    /// Takes an idle connection or makes one. Also returns true if the connection is new.
    async fn connection(
        &self,
        host: &HostPool,
        uri: &Uri,
        timeout: Duration,
    ) -> Result<(Connection, bool), ConnectError> {
        if let Some(connection) = host.take(self.clock.now_ms()) {
            return Ok((connection, false));
        }
        let made = async {
            let _turn = host.connecting.acquire().await;
            if let Some(connection) = host.take(self.clock.now_ms()) {
                return Ok((connection, false));
            }
            self.connector.connect(uri).await.map(|connection| (connection, true))
        };
        with_timeout(Some(timeout), made).await.unwrap_or_else(|| {
            Err(ConnectError::TimedOut { target: super::proxy::host_and_port(uri), timeout })
        })
    }

    fn host(&self, uri: &Uri) -> Arc<HostPool> {
        let target = PoolKey { scheme: uri.scheme().cloned(), authority: uri.authority().cloned() };
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(hosts.entry(target).or_insert_with(|| Arc::new(HostPool::new())))
    }

    /// Starts the task that closes expired idle connections, unless it is running.
    fn watch_idle(self: &Arc<Self>) {
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        while reaper.try_join_next().is_some() {}
        if reaper.is_empty() && tokio::runtime::Handle::try_current().is_ok() {
            reaper.spawn(reap(Arc::downgrade(self)));
        }
    }

    /// Closes idle connections that have expired or that the peer has closed.
    fn close_expired(&self) {
        let now_ms = self.clock.now_ms();
        let hosts: Vec<Arc<HostPool>> = {
            let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            hosts.values().cloned().collect()
        };
        for host in hosts {
            host.keep(|idle| !idle.is_expired(now_ms) && !idle.connection.is_closed());
        }
    }
}

/// Closes expired idle connections periodically until the pool is dropped.
async fn reap(pool: Weak<HttpPool>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT / 4).await;
        match pool.upgrade() {
            Some(pool) => pool.close_expired(),
            None => return,
        }
    }
}

impl IdleConnection {
    fn is_expired(&self, now_ms: u64) -> bool {
        u128::from(now_ms.saturating_sub(self.since_ms)) >= IDLE_TIMEOUT.as_millis()
    }
}

impl HostPool {
    fn new() -> Self {
        Self { idle: Mutex::default(), connecting: Semaphore::new(CONNECTING_MAX) }
    }

    /// Takes the most recently used idle connection. Drops expired and closed ones.
    fn take(&self, now_ms: u64) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let last = idle.pop()?;
            if !last.is_expired(now_ms) && !last.connection.is_closed() {
                return Some(last.connection);
            }
        }
    }

    /// Closes the idle connections for which `keep` returns false.
    fn keep(&self, keep: impl Fn(&IdleConnection) -> bool) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).retain(keep);
    }
}

/// A connection that is in use by a call. Dropping it before the end of the reply closes it.
#[derive(Debug)]
pub(super) struct LeasedConnection {
    /// `Some` until the connection is returned or discarded.
    connection: Option<Connection>,
    pool: Arc<HttpPool>,
    host: Arc<HostPool>,
    since_ms: u64,
}

impl LeasedConnection {
    fn new(connection: Connection, pool: Arc<HttpPool>, host: Arc<HostPool>) -> Self {
        let since_ms = pool.clock.now_ms();
        connection.begin_call();
        Self { connection: Some(connection), pool, host, since_ms }
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the value is present until it is released")
    }

    /// Returns true if the connection was closed because it was silent.
    pub(super) fn is_dead(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_dead)
    }

    /// Returns the connection to the pool.
    pub(super) fn give_back(mut self) {
        let Some(connection) = self.connection.take() else { return };
        connection.end_call();
        if !connection.is_closed() {
            let idle = IdleConnection { connection, since_ms: self.pool.clock.now_ms() };
            self.host.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
            self.pool.watch_idle();
        }
    }

    /// Closes the connection without suspecting the other connections.
    pub(super) fn discard(mut self) {
        self.connection = None;
    }
}

impl Drop for LeasedConnection {
    /// Closes the connection. If the call took long, the network path may be dead. Connections that
    /// have been idle since before the call may then be dead too, so they are closed as well.
    fn drop(&mut self) {
        if self.connection.take().is_none() {
            return;
        }
        let lasted_ms = self.pool.clock.now_ms().saturating_sub(self.since_ms);
        if lasted_ms >= SUSPICIOUS_MS {
            self.host.keep(|idle| idle.since_ms >= self.since_ms);
        }
    }
}

/// Waits for `work`, for at most `timeout`. Returns `None` on a time-out.
async fn with_timeout<T>(timeout: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    let work = pin!(work);
    match timeout {
        None => Some(work.await),
        Some(timeout) => tokio::time::timeout(timeout, work).await.ok(),
    }
}
