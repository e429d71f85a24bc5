//! A proxy between the store and a server that misbehaves on request.

use crate::server::config_for;
use aws_types::SdkConfig;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Fault of a request.
#[derive(Clone)]
pub(crate) enum RequestFault {
    /// It never arrives.
    LoseRequest,
    /// It is carried out, and its reply is lost.
    LoseReply,
    /// It is answered without being carried out.
    Answer(u16, String),
    /// No fault: the next entry of the script applies to a later request.
    Pass,
    /// It is held: the first `Notify` reports its arrival, the second lets it pass.
    Hold(Arc<Notify>, Arc<Notify>),
}

impl RequestFault {
    /// Returns an error as the service words it.
    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
        Self::Answer(status, format!(r#"{{"__type":"{kind}","message":"{message}"}}"#))
    }

    /// Returns a cancelled transaction, with a reason for each of its two items.
    pub(crate) fn cancelled(first: &str, second: &str) -> Self {
        let kind = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
        let reason = |code| format!(r#"{{"Code":"{code}"}}"#);
        let reasons = format!("[{},{}]", reason(first), reason(second));
        let body = format!(
            r#"{{"__type":"{kind}","message":"cancelled","CancellationReasons":{reasons}}}"#
        );
        Self::Answer(400, body)
    }
}

type FaultScript = Arc<Mutex<VecDeque<(&'static str, RequestFault)>>>;

/// The proxy. Dropping it closes its connections.
pub(crate) struct FaultyProxy {
    address: SocketAddr,
    /// Pending faults: each applies to the next request of its operation, in this order.
    script: FaultScript,
    #[expect(dead_code, reason = "held, so that the tasks live as long")]
    tasks: JoinSet<()>,
}

impl FaultyProxy {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("it has an address");
        let script = FaultScript::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server, Arc::clone(&script)));
        Self { address, script, tasks }
    }

    pub(crate) fn config(&self) -> SdkConfig {
        config_for(&format!("http://{}", self.address))
    }

    /// Adds a fault for the next request of an operation.
    pub(crate) fn next(&self, operation: &'static str, mischief: RequestFault) {
        self.script.lock().expect("nobody panics with it").push_back((operation, mischief));
    }

    /// Returns the number of faults that have not occurred yet.
    pub(crate) fn left(&self) -> usize {
        self.script.lock().expect("nobody panics with it").len()
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, script: FaultScript) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let script = Arc::clone(&script);
        connections.spawn(async move {
            let _ended = relay(client, server, script).await;
        });
    }
}

/// Relays one connection until either side closes it or the script cuts it.
async fn relay(mut client: TcpStream, server: SocketAddr, script: FaultScript) -> Option<()> {
    let mut upstream = TcpStream::connect(server).await.ok()?;
    loop {
        let request = message(&mut client).await?;
        match due(&request, &script) {
            Some(RequestFault::LoseRequest) => return None,
            Some(RequestFault::Answer(status, body)) => {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\n\
                     content-length: {}\r\n\r\n",
                    body.len()
                );
                client.write_all(head.as_bytes()).await.ok()?;
                client.write_all(body.as_bytes()).await.ok()?;
                continue;
            }
            Some(RequestFault::LoseReply) => {
                upstream.write_all(&request).await.ok()?;
                message(&mut upstream).await?;
                return None;
            }
            Some(RequestFault::Hold(here, go)) => {
                here.notify_one();
                go.notified().await;
            }
            Some(RequestFault::Pass) | None => {}
        }
        upstream.write_all(&request).await.ok()?;
        let reply = message(&mut upstream).await?;
        client.write_all(&reply).await.ok()?;
    }
}

/// Removes and returns the scripted fault for this request.
fn due(request: &[u8], script: &FaultScript) -> Option<RequestFault> {
    let head = String::from_utf8_lossy(request).to_lowercase();
    let mut script = script.lock().expect("nobody panics with it");
    let (operation, _) = script.front()?;
    let target = format!("x-amz-target: dynamodb_20120810.{}\r\n", operation.to_lowercase());
    if head.contains(&target) { script.pop_front().map(|(_, mischief)| mischief) } else { None }
}

/// Reads one HTTP/1.1 message with its body.
async fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(Some(0), |length| length.trim().parse().ok())?;
            if bytes.len() >= end + 4 + length {
                return Some(bytes);
            }
        }
        if from.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
