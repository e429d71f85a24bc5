//! The TLS handshake of a connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time limit for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// First byte of every TLS handshake: the record type of a `ClientHello`.
const HANDSHAKE_RECORD: u8 = 22;
/// Maximum number of bytes read from a plain request before it is refused.
const REFUSED_BYTES: usize = 16 * 1024;

/// The answer to a request without TLS.
const SPEAK_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
content-type: text/plain\r\n\
content-length: 51\r\n\
connection: close\r\n\r\n\
This port speaks TLS: use https:// in the endpoint\n";

/// Completes a handshake. Returns `None` if the client fails to, or exceeds the time limit.
pub(super) async fn accept(
    acceptor: &TlsAcceptor,
    mut socket: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    let shaken = async {
        let mut first = [0; 1];
        match socket.peek(&mut first).await {
            Ok(0) | Err(_) => None,
            Ok(_) if first[0] == HANDSHAKE_RECORD => acceptor.accept(socket).await.ok(),
            Ok(_) => {
                refuse(&mut socket).await;
                None
            }
        }
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, shaken).await.ok().flatten()
}

/// Tells a client in plain HTTP that this port requires TLS.
async fn refuse(socket: &mut TcpStream) {
    // Unread bytes would make the system reset the connection, which may lose the answer.
    let mut request = vec![0; REFUSED_BYTES];
    let _ = socket.read(&mut request).await;
    // Errors are ignored, because the client may be gone.
    let _ = socket.write_all(SPEAK_TLS).await;
    let _ = socket.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::SPEAK_TLS;

    #[test]
    fn the_refusal_announces_its_own_length() {
        let text = std::str::from_utf8(SPEAK_TLS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{text}");
    }
}
