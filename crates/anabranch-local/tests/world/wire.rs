//! A minimal HTTP/1.1 client that sends exactly the bytes that a test specifies.

use std::fmt::Write;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection that is kept alive between requests.
pub(crate) struct RawConnection(BufReader<TcpStream>);

/// A response, its body without the chunk headers.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl RawResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

impl RawConnection {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.expect("a connection")))
    }

    /// Calls a Kinesis operation in JSON.
    pub(crate) async fn kinesis(&mut self, operation: &str, body: &str) -> RawResponse {
        self.call(operation, "application/x-amz-json-1.1", body.as_bytes()).await
    }

    /// Calls a Kinesis operation in any content type.
    pub(crate) async fn call(&mut self, operation: &str, kind: &str, body: &[u8]) -> RawResponse {
        let target = format!("Kinesis_20131202.{operation}");
        let headers = [("x-amz-target", target.as_str()), ("content-type", kind)];
        self.send("POST", "/", &headers, body).await.expect("an answer")
    }

    /// Sends any request. Returns `None` if the connection ends without an answer.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<RawResponse> {
        let length = body.len();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: local\r\n");
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "content-length: {length}\r\n\r\n");
        self.0.write_all(head.as_bytes()).await.ok()?;
        // A server that refuses a large body may close the connection before it has received all of
        // it.
        let _ = self.0.write_all(body).await;
        self.answer().await
    }

    async fn answer(&mut self) -> Option<RawResponse> {
        let status = self.line().await?;
        let status = status.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut answer = RawResponse { status, headers, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                answer.body.extend(chunk);
            }
        } else {
            let length = answer.header("content-length").map_or(0, |n| n.parse().expect("digits"));
            answer.body = vec![0; length];
            self.0.read_exact(&mut answer.body).await.ok()?;
        }
        Some(answer)
    }

    /// Reads one chunk of a chunked body. Returns `None` at its end.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line().await?, 16).ok()?;
        let mut chunk = vec![0; length];
        self.0.read_exact(&mut chunk).await.ok()?;
        self.line().await?;
        (length > 0).then_some(chunk)
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        loop {
            match self.0.read_u8().await.ok()? {
                b'\n' => break,
                b'\r' => {}
                byte => line.push(byte),
            }
        }
        String::from_utf8(line).ok()
    }
}
