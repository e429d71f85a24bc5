//! Sockets and connections: HTTP/1.1 and HTTP/2 (prior knowledge) on one port.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::route::{Service, answer};

/// How long requests in flight may take to finish once a stop was asked for.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Pause after an accept that failed, which is nearly always a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until a stop is asked for, then lets the open ones finish.
pub(crate) async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = asked(&mut stop) => break,
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(connection(socket, Arc::clone(&service), stop.clone()));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_GRACE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Waits until a stop is asked for, or nobody is left who could ask.
pub(super) async fn asked(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|asked| *asked).await;
}

async fn connection(socket: TcpStream, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    // Without this a 10 MB answer to Node takes seconds: its small HTTP/2 window and Nagle's
    // algorithm wait for each other. A socket that refuses it is already closed.
    let _ = socket.set_nodelay(true);
    let streams = Streams::default();
    let http = auto::Builder::new(streams.clone());
    let answers = service_fn(move |request| answer(Arc::clone(&service), request));
    let connection = http.serve_connection(TokioIo::new(socket), answers);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        () = asked(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            // An error here is a client that went away, which is no concern of the server.
            let _ = connection.await;
        }
        _ = connection.as_mut() => {}
    }
    streams.finish().await;
}

/// The tasks of one connection's HTTP/2 streams, owned by the connection.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<JoinSet<()>>>);

impl Streams {
    fn lock(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the tasks that the connection left behind; they see its end by themselves.
    async fn finish(self) {
        let mut tasks = std::mem::take(&mut *self.lock());
        while tasks.join_next().await.is_some() {}
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let mut tasks = self.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(stream);
    }
}
