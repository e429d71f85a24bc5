//! A proxy between a store and PostgreSQL, which loses messages on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Fault of each `COMMIT`, or of everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProxyMode {
    /// Everything passes.
    Pass,
    /// The connection is cut before a `COMMIT` reaches the server.
    CutBeforeCommit,
    /// The connection is cut after the server has carried out a `COMMIT`.
    CutAfterCommit,
    /// A `COMMIT` waits, with its client gone, until the mode changes.
    HoldCommit,
    /// Nothing passes, and the connections stay open.
    Mute,
    /// Everything passes late: the server is far away.
    Far,
    /// Each connection is closed at once.
    Closed,
}

/// Reply time of a server that is far away.
const ROUND_TRIP: Duration = Duration::from_millis(150);

pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Number of accepted connections.
    pub(crate) accepted: Arc<AtomicU32>,
    mode: Arc<watch::Sender<ProxyMode>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(watch::channel(ProxyMode::Pass).0);
        let mut tasks = JoinSet::new();
        let modes = Arc::clone(&mode);
        let accepted = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&accepted);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                if *modes.borrow() == ProxyMode::Closed {
                    continue;
                }
                connections.spawn(carry(client, server, modes.subscribe()));
            }
        });
        Self { port, accepted, mode, _tasks: tasks }
    }

    pub(crate) fn set(&self, mode: ProxyMode) {
        self.mode.send_replace(mode);
    }
}

async fn carry(mut client: TcpStream, server: u16, mut mode: watch::Receiver<ProxyMode>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut question, mut answer) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            biased;
            read = client.read(&mut question) => {
                let Some(sent) = some(read) else { return };
                let sent = &question[..sent];
                let commit = sent.windows(7).any(|bytes| bytes == b"COMMIT\0");
                let now = *mode.borrow();
                match now {
                    ProxyMode::CutBeforeCommit if commit => return,
                    ProxyMode::CutAfterCommit if commit => {
                        server.write_all(sent).await.unwrap();
                        let _reply = server.read(&mut answer).await;
                        return;
                    }
                    ProxyMode::HoldCommit if commit => {
                        drop(client);
                        mode.wait_for(|mode| *mode == ProxyMode::Pass).await.unwrap();
                        server.write_all(sent).await.unwrap();
                        let _reply = server.read(&mut answer).await;
                        return;
                    }
                    ProxyMode::Mute => std::future::pending::<()>().await,
                    ProxyMode::Far => {
                        tokio::time::sleep(ROUND_TRIP).await;
                        if server.write_all(sent).await.is_err() { return }
                    }
                    _ => if server.write_all(sent).await.is_err() { return },
                }
            }
            read = server.read(&mut answer) => {
                let Some(sent) = some(read) else { return };
                if *mode.borrow() == ProxyMode::Mute {
                    std::future::pending::<()>().await;
                }
                if client.write_all(&answer[..sent]).await.is_err() { return }
            }
        }
    }
}

/// Returns the number of bytes read, or `None` at the end.
fn some(read: std::io::Result<usize>) -> Option<usize> {
    read.ok().filter(|length| *length > 0)
}
