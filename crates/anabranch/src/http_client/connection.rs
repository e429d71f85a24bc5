//! One connection, HTTP/1.1 or HTTP/2, with one call at a time.

use super::PING_AFTER;
use super::body::RequestBody;
use super::error::{CallError, ConnectError};
use super::liveness::Liveness;
use super::tasks::ConnectionTasks;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::rt::Executor;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioTimer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a reply that the server may send before they are read. Enough for a fan-out consumer's
/// 2 MB/s per shard at a round trip of up to 250 ms.
const WINDOW_BYTES: u32 = 512 * 1024;

/// Longer than any connection lasts.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// Number of connections of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Connections made since the start.
    pub made: u64,
    /// Connections open now.
    pub open: usize,
}

/// Counts connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounter {
    made: AtomicU64,
    open: AtomicUsize,
}

impl ConnectionCounter {
    pub(super) fn count(&self) -> Connections {
        Connections {
            made: self.made.load(Ordering::Relaxed),
            open: self.open.load(Ordering::Relaxed),
        }
    }
}

/// A byte transport: TCP, TLS, or TLS inside TLS.
pub(super) trait Transport: Read + Write + Send + Unpin {}
impl<T: Read + Write + Send + Unpin> Transport for T {}

/// Form of the request target in HTTP/1.1.
#[derive(Debug, Clone)]
pub(super) enum RequestForm {
    /// Path only: the peer is the service, or a tunnel to it.
    Origin,
    /// Absolute address, for a proxy that forwards plain HTTP.
    Absolute {
        /// The `Proxy-Authorization` header, if the proxy needs one.
        authorization: Option<HeaderValue>,
    },
}

/// An open connection. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Connection {
    sender: RequestSender,
    form: RequestForm,
    /// Liveness of the transport. Only HTTP/2, which has PING, is closed for silence.
    life: Arc<Liveness>,
    /// Tasks that drive the connection. Dropping them closes the socket.
    _tasks: ConnectionTasks,
    counter: Arc<ConnectionCounter>,
}

#[derive(Debug)]
enum RequestSender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// A request without a reply.
pub(super) enum Unanswered {
    /// The connection was already closed. Contains the request, which can be sent again.
    NotTaken(Box<Request<RequestBody>>),
    /// The request was passed to the connection.
    Failed(CallError),
}

impl Connection {
    /// Performs the HTTP/1.1 handshake on a transport.
    pub(super) async fn http1(
        transport: Box<dyn Transport>,
        target: &str,
        form: RequestForm,
        life: Arc<Liveness>,
        counter: Arc<ConnectionCounter>,
    ) -> Result<Self, ConnectError> {
        let handshake = http1::Builder::new().handshake(transport).await;
        let (sender, connection) = handshake.map_err(|source| broken(target, source))?;
        let tasks = ConnectionTasks::default();
        tasks.spawner().execute(connection);
        Ok(Self::new(RequestSender::Http1(sender), form, life, tasks, counter))
    }

    /// Performs the HTTP/2 handshake on a transport.
    pub(super) async fn http2(
        transport: Box<dyn Transport>,
        target: &str,
        life: Arc<Liveness>,
        counter: Arc<ConnectionCounter>,
    ) -> Result<Self, ConnectError> {
        let tasks = ConnectionTasks::default();
        let mut builder = http2::Builder::new(tasks.spawner());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .keep_alive_interval(PING_AFTER)
            // `Liveness` closes a connection that does not answer.
            .keep_alive_timeout(NEVER)
            .keep_alive_while_idle(false);
        let handshake = builder.handshake(transport).await;
        let (sender, connection) = handshake.map_err(|source| broken(target, source))?;
        tasks.spawner().execute(connection);
        let (watched, spawner) = (Arc::clone(&life), tasks.spawner());
        tasks.spawner().execute(async move {
            watched.wait_silent().await;
            spawner.abort_all();
        });
        Ok(Self::new(RequestSender::Http2(sender), RequestForm::Origin, life, tasks, counter))
    }

    fn new(
        sender: RequestSender,
        form: RequestForm,
        life: Arc<Liveness>,
        tasks: ConnectionTasks,
        counter: Arc<ConnectionCounter>,
    ) -> Self {
        counter.made.fetch_add(1, Ordering::Relaxed);
        counter.open.fetch_add(1, Ordering::Relaxed);
        Self { sender, form, life, _tasks: tasks, counter }
    }

    /// Begins a call: silence counts from now on.
    pub(super) fn begin_call(&self) {
        self.life.begin_call();
    }

    /// Ends a call.
    pub(super) fn end_call(&self) {
        self.life.end_call();
    }

    /// Returns true if the connection was closed because it was silent.
    pub(super) fn is_dead(&self) -> bool {
        self.life.is_dead()
    }

    /// Returns true if the peer or an error closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            RequestSender::Http1(sender) => sender.is_closed(),
            RequestSender::Http2(sender) => sender.is_closed(),
        }
    }

    /// Sends a request and waits for the head of its reply.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let life = Arc::clone(&self.life);
        tokio::select! {
            biased;
            answer = self.answer(request) => answer,
            // A request queued just as the connection ends may never be answered, because the task
            // that would answer it has ended.
            () = life.wait_closed() => Err(Unanswered::Failed(CallError::Closed)),
        }
    }

    async fn answer(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let uri = request.uri().clone();
        let sent = match &mut self.sender {
            RequestSender::Http1(sender) => {
                // The connection's task may not have processed the end of the last reply yet.
                if sender.ready().await.is_err() {
                    return Err(Unanswered::NotTaken(Box::new(request)));
                }
                make_http1(&mut request, &self.form);
                sender.try_send_request(request).await
            }
            RequestSender::Http2(sender) => {
                *request.version_mut() = Version::HTTP_2;
                sender.try_send_request(request).await
            }
        };
        sent.map_err(|error| match unanswered(error, uri) {
            Unanswered::Failed(CallError::Lost(_)) if self.is_dead() => {
                Unanswered::Failed(CallError::Silent)
            }
            unanswered => unanswered,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counter.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn broken(target: &str, source: hyper::Error) -> ConnectError {
    ConnectError::Handshake { target: target.to_owned(), source }
}

fn unanswered(mut error: TrySendError<Request<RequestBody>>, uri: Uri) -> Unanswered {
    match error.take_message() {
        Some(mut request) => {
            *request.uri_mut() = uri;
            Unanswered::NotTaken(Box::new(request))
        }
        None => Unanswered::Failed(CallError::of_sent(error.into_error())),
    }
}

/// Converts a request to HTTP/1.1: sets the version, `Host` and the request target.
fn make_http1(request: &mut Request<RequestBody>, form: &RequestForm) {
    *request.version_mut() = Version::HTTP_11;
    if !request.headers().contains_key(HOST)
        && let Some(host) = host_header(request.uri())
    {
        request.headers_mut().insert(HOST, host);
    }
    match form {
        RequestForm::Origin => {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = path.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
        }
        RequestForm::Absolute { authorization } => {
            if let Some(authorization) = authorization {
                request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
    }
}

/// Returns the host, with its port unless it is the scheme's default. This form is signed.
fn host_header(uri: &Uri) -> Option<HeaderValue> {
    let (host, usual) = (uri.host()?, if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 });
    let text = match uri.port_u16() {
        Some(port) if port != usual => format!("{host}:{port}"),
        _ => host.to_owned(),
    };
    HeaderValue::try_from(text).ok()
}
