//! Idle connections by host, and the way of a call through them.

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

/// A call that was given up after so long says that the network path may be dead.
const SUSPICIOUS_MS: u64 = 1_000;

/// The connections of a client.
#[derive(Debug)]
pub(super) struct HttpPool {
    connector: Connector,
    clock: Clock,
    hosts: Mutex<HashMap<PoolKey, Arc<HostPool>>>,
    /// Closes connections that are idle for too long.
    reaper: Mutex<JoinSet<()>>,
}

/// A scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    scheme: Option<Scheme>,
    authority: Option<Authority>,
}

/// The connections to one host.
#[derive(Debug)]
pub(super) struct HostPool {
    /// The one that was used last is at the end, and is used next: so the others grow old.
    idle: Mutex<Vec<IdleConnection>>,
    /// Turns at making a connection.
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
                // It closed while it was idle.
                Err(Unanswered::NotTaken(again)) => request = *again,
            }
            lent.discard();
        }
    }

    /// Takes an idle connection, or makes one. Returns whether it is a fresh one.
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

    /// Starts the task that closes connections which are idle for too long, unless it runs.
    fn watch_idle(self: &Arc<Self>) {
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        while reaper.try_join_next().is_some() {}
        if reaper.is_empty() && tokio::runtime::Handle::try_current().is_ok() {
            reaper.spawn(reap(Arc::downgrade(self)));
        }
    }

    /// Closes what is idle for too long.
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

/// Closes connections that are idle for too long, for as long as there is a pool.
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

    /// Takes the idle connection that was used last.
    fn take(&self, now_ms: u64) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let last = idle.pop()?;
            if !last.is_expired(now_ms) && !last.connection.is_closed() {
                return Some(last.connection);
            }
        }
    }

    /// Closes the idle connections that `keep` is false for.
    fn keep(&self, keep: impl Fn(&IdleConnection) -> bool) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).retain(keep);
    }
}

/// A connection with a call on it. Dropped before the reply's end, it closes the connection.
#[derive(Debug)]
pub(super) struct LeasedConnection {
    /// There until it is given back.
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
        self.connection.as_mut().expect("it is there until it is given back")
    }

    /// Returns whether the connection was given up because it was silent.
    pub(super) fn is_dead(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_dead)
    }

    /// Gives the connection back for the next call.
    pub(super) fn give_back(mut self) {
        let Some(connection) = self.connection.take() else { return };
        connection.end_call();
        if !connection.is_closed() {
            let idle = IdleConnection { connection, since_ms: self.pool.clock.now_ms() };
            self.host.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
            self.pool.watch_idle();
        }
    }

    /// Closes the connection and says nothing about the others.
    pub(super) fn discard(mut self) {
        self.connection = None;
    }
}

impl Drop for LeasedConnection {
    /// A call that was given up after a while may have met a dead network path, and connections
    /// that were idle before it began may have taken the same.
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

/// Waits for `work`, for at most `timeout`.
async fn with_timeout<T>(timeout: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    let work = pin!(work);
    match timeout {
        None => Some(work.await),
        Some(timeout) => tokio::time::timeout(timeout, work).await.ok(),
    }
}
