//! TCP proxy that can be shut: bytes in transit stay there, and neither side is notified.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) struct TcpValve {
    port: u16,
    is_open: Arc<watch::Sender<bool>>,
    /// Aborted on drop.
    _task: JoinSet<()>,
}

impl TcpValve {
    /// Creates an open proxy to this port.
    pub(crate) async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_open = Arc::new(watch::Sender::new(true));
        let gate = Arc::clone(&is_open);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut ways = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut gate = gate.subscribe();
                gate.wait_for(|open| *open).await.unwrap();
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                ways.spawn(carry(from_client, to_server, gate.clone()));
                ways.spawn(carry(from_server, to_client, gate));
            }
        });
        Self { port, is_open, _task: task }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn shut(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }
}

/// Forwards bytes, and the end of the stream, while the valve is open.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gate: watch::Receiver<bool>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer).await.unwrap_or(0);
        if gate.wait_for(|open| *open).await.is_err() {
            return;
        }
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            let _ended = to.shutdown().await;
            return;
        }
    }
}
