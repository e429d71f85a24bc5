//! Sockets and connections. Each port speaks HTTP/1.1 and HTTP/2: by ALPN with TLS, by prior
//! knowledge without.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::client_timeout::{
    CLIENT_TIMEOUT, ClientTimer, ReplyWindow, TimedConnection, TimedReply,
};
use super::connections::Counter;
use super::handshake;
use super::lingering_close::LingeringClose;
use super::route::{ReplyDropped, Service, answer};

/// Grace period for requests in flight after a stop is requested.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept, which is nearly always caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Options for HTTP connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpOptions {
    /// Maximum time that a client may keep the server waiting.
    pub(crate) client_timeout: Duration,
    /// Maximum number of concurrent HTTP/2 streams on one connection. `None`: hyper's default, 200.
    pub(crate) max_concurrent_streams: Option<u32>,
    /// Number of requests on one connection after which it is shut down gracefully. `None`:
    /// unlimited.
    pub(crate) goaway_after: Option<u64>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { client_timeout: CLIENT_TIMEOUT, max_concurrent_streams: None, goaway_after: None }
    }
}

/// A port to serve.
pub(super) struct ServedPort {
    pub(super) listener: TcpListener,
    /// `Some` if the port requires TLS.
    pub(super) acceptor: Option<TlsAcceptor>,
    pub(super) options: HttpOptions,
    pub(super) connections: Arc<Counter>,
}

/// Accepts connections until a stop is requested. Then waits up to [`STOP_GRACE`] for the open ones
/// to finish.
pub(super) async fn serve(
    port: ServedPort,
    service: Arc<Service>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = asked(&mut stop) => break,
            accepted = port.listener.accept() => match accepted {
                Ok((socket, _)) => {
                    let counted = port.connections.accepted();
                    let session = HttpSession {
                        service: Arc::clone(&service),
                        options: port.options,
                        stop: stop.clone(),
                    };
                    let acceptor = port.acceptor.clone();
                    connections.spawn(async move {
                        session.run(socket, acceptor).await;
                        drop(counted);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(port.listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_GRACE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Waits until a stop is requested or its sender is dropped.
pub(super) async fn asked(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|asked| *asked).await;
}

/// One connection and the service behind it.
struct HttpSession {
    service: Arc<Service>,
    options: HttpOptions,
    stop: watch::Receiver<bool>,
}

impl HttpSession {
    async fn run(mut self, socket: TcpStream, acceptor: Option<TlsAcceptor>) {
        // Without this, a 10 MB answer to Node takes seconds, because its small HTTP/2 window and
        // Nagle's algorithm wait for each other. A socket that refuses the option is already
        // closed.
        let _ = socket.set_nodelay(true);
        let Some(acceptor) = acceptor else { return self.serve(socket, false).await };
        let accepted = tokio::select! {
            biased;
            () = asked(&mut self.stop) => None,
            accepted = handshake::accept(&acceptor, socket) => accepted,
        };
        let Some(stream) = accepted else { return };
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        self.serve(stream, http2).await;
    }

    /// Serves a connection. `http2` is true if HTTP/2 was negotiated by ALPN.
    async fn serve<I>(mut self, stream: I, http2: bool)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = self.options.client_timeout;
        let (streams, pace) = (StreamTasks::new(limit), ClientTimer::new(limit, http2));
        let mut http = auto::Builder::new(streams.clone());
        // Pings detect dead clients, both idle and in the middle of a header block.
        let mut http2 = http.http2();
        http2.timer(TokioTimer::new()).keep_alive_interval(limit).keep_alive_timeout(limit);
        if let Some(most) = self.options.max_concurrent_streams {
            http.http2().max_concurrent_streams(most);
        }
        let budget = Arc::new(RequestBudget::new(self.options.goaway_after));
        let (service, counted) = (self.service, Arc::clone(&budget));
        let asked_of = Arc::clone(&pace);
        let answers = service_fn(move |request: http::Request<Incoming>| {
            counted.spend();
            let version = request.version();
            let open = asked_of.request(version);
            let answered = answer(Arc::clone(&service), request);
            async move {
                Ok::<_, ReplyDropped>(answered.await?.map(|it| TimedReply::new(it, version, open)))
            }
        });
        let stream = TimedConnection::new(stream, Arc::clone(&pace));
        let stream =
            TokioIo::new(LingeringClose::new(stream, Arc::clone(&pace), self.stop.clone()));
        let mut connection = Box::pin(http.serve_connection(stream, answers));
        let last_request = async {
            tokio::select! {
                biased;
                () = asked(&mut self.stop) => {}
                () = budget.spent() => {}
            }
        };
        let served = async {
            tokio::select! {
                biased;
                () = last_request => {
                    connection.as_mut().graceful_shutdown();
                    // An error here means that the client went away, which does not concern the
                    // server.
                    let _ = connection.as_mut().await;
                }
                _ = connection.as_mut() => {}
            }
        };
        tokio::select! {
            biased;
            () = pace.wait_overdue() => {}
            () = served => {}
        }
        drop(connection);
        streams.finish().await;
    }
}

/// The number of requests that one connection may make before it is shut down gracefully.
struct RequestBudget {
    left: Option<AtomicU64>,
    spent: Notify,
}

impl RequestBudget {
    fn new(requests: Option<u64>) -> Self {
        Self { left: requests.map(AtomicU64::new), spent: Notify::new() }
    }

    /// Counts a request.
    fn spend(&self) {
        // A client may send more requests before it sees the GOAWAY. The count then wraps and is
        // meaningless.
        if self.left.as_ref().is_some_and(|left| left.fetch_sub(1, Ordering::Relaxed) == 1) {
            self.spent.notify_one();
        }
    }

    /// Waits until the last request of the budget has arrived.
    async fn spent(&self) {
        self.spent.notified().await;
    }
}

/// The tasks of one connection's HTTP/2 streams, owned by the connection.
#[derive(Clone)]
struct StreamTasks {
    tasks: Arc<Mutex<JoinSet<()>>>,
    /// Maximum time that a client may leave a reply unread.
    limit: Duration,
}

impl StreamTasks {
    fn new(limit: Duration) -> Self {
        Self { tasks: Arc::default(), limit }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the tasks that the connection left behind. They notice its end by themselves.
    async fn finish(self) {
        let mut tasks = std::mem::take(&mut *self.lock());
        while tasks.join_next().await.is_some() {}
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, stream: F) {
        let mut tasks = self.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(ReplyWindow::watch(self.limit, stream));
    }
}
