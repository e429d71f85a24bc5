//! A local stream over plain HTTP and over TLS with HTTP/2, and a faulty network in between.

#![allow(dead_code, reason = "each test program uses a part")]

use anabranch::http_client::HttpClient;
use anabranch_local::{Local, LocalBuilder, Tls};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Transport between a client and the local stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Plain HTTP/1.1.
    Http,
    /// TLS with HTTP/2.
    Tls,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Http, Self::Tls];

    /// Starts a local stream that supports this transport.
    pub(crate) async fn start(self, builder: LocalBuilder) -> Local {
        let builder = match self {
            Self::Http => builder,
            Self::Tls => builder.with_tls(Tls::generated()),
        };
        builder.start().await.unwrap()
    }

    /// Returns the address of the local stream.
    pub(crate) fn address(self, local: &Local) -> SocketAddr {
        match self {
            Self::Http => local.address(),
            Self::Tls => local.tls_address().unwrap(),
        }
    }

    /// Returns a configuration with the library's own HTTP client.
    pub(crate) fn config(self, local: &Local) -> aws_types::SdkConfig {
        self.config_at(local, self.address(local))
    }

    /// Returns the same for clients that reach the local stream by another address.
    pub(crate) fn config_at(self, local: &Local, address: SocketAddr) -> aws_types::SdkConfig {
        let (scheme, client) = match self {
            Self::Http => ("http", HttpClient::from_env().unwrap()),
            Self::Tls => ("https", HttpClient::with_trusted_pem(local.ca_pem().unwrap()).unwrap()),
        };
        let config = local.sdk_config().into_builder();
        config.endpoint_url(format!("{scheme}://{address}")).http_client(client).build()
    }
}

/// A slow connection.
struct SlowLink {
    bytes_per_second: u32,
    /// Time at which all bytes sent so far are through.
    free_at: Mutex<Instant>,
}

impl SlowLink {
    /// Waits until `bytes` are through.
    async fn pass(&self, bytes: usize) {
        let until = {
            let mut free_at = self.free_at.lock().unwrap();
            let takes = Duration::from_secs(bytes as u64) / self.bytes_per_second;
            *free_at = (*free_at).max(Instant::now()) + takes;
            *free_at
        };
        tokio::time::sleep_until(until).await;
    }
}

/// A TCP relay before a server. It forwards everything until a test injects a fault.
pub(crate) struct Network {
    address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    server: SocketAddr,
    /// Connection to the server that all clients share, if it is slow.
    uplink: Option<SlowLink>,
    /// Number of accepted connections.
    accepted: AtomicUsize,
    /// Number of bytes sent to the server.
    sent: AtomicU64,
    /// Connections with a number below this are silent: they stay open and are read, but nothing is
    /// forwarded.
    silent_below: watch::Sender<usize>,
    /// Connections with a number below this are closed.
    cut_below: watch::Sender<usize>,
}

impl Network {
    /// Starts a relay before a server.
    pub(crate) async fn before(server: SocketAddr) -> Self {
        Self::with_uplink(server, None).await
    }

    /// Starts a relay before a server, with a slow connection to it.
    pub(crate) async fn with_uplink(server: SocketAddr, bytes_per_second: Option<u32>) -> Self {
        let uplink = bytes_per_second.map(|bytes_per_second| SlowLink {
            bytes_per_second,
            free_at: Mutex::new(Instant::now()),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            server,
            uplink,
            accepted: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            silent_below: watch::Sender::new(0),
            cut_below: watch::Sender::new(0),
        });
        let shared = Arc::clone(&state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                while connections.try_join_next().is_some() {}
                let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(pass(Arc::clone(&shared), client, number));
            }
        });
        Self { address, state, _tasks: tasks }
    }

    /// Returns the address to connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Silences all current connections. They stay open, and the system acknowledges the data sent
    /// on them. New connections work.
    pub(crate) fn silence(&self) {
        self.state.silent_below.send_replace(self.accepted());
    }

    /// Closes all current connections.
    pub(crate) fn cut(&self) {
        self.state.cut_below.send_replace(self.accepted());
    }

    /// Returns the number of accepted connections.
    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes sent to the server.
    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }
}

/// Relays one connection.
async fn pass(state: Arc<State>, client: TcpStream, number: usize) {
    let Ok(server) = TcpStream::connect(state.server).await else { return };
    for socket in [&client, &server] {
        socket.set_nodelay(true).unwrap();
    }
    let mut cuts = state.cut_below.subscribe();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            if *state.silent_below.borrow() > number {
                continue;
            }
            if let Some(uplink) = &state.uplink {
                uplink.pass(read).await;
            }
            state.sent.fetch_add(read as u64, Ordering::SeqCst);
            if to_server.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if *state.silent_below.borrow() > number {
                continue;
            }
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
        // A silent connection does not show that the server closed it.
        if *state.silent_below.borrow() > number {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        _ = cuts.wait_for(|below| *below > number) => {}
        () = up => {}
        () = down => {}
    }
}
