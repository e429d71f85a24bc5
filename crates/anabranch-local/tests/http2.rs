//! HTTP/2 by prior knowledge on the same port, as JavaScript and Java clients open it.

mod world;

use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::{PutRecordsRequestEntry, ShardIteratorType};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use world::ServerFixture;

/// Lower bound of the payload of one large answer, in bytes.
const LARGE: usize = 9 * 1024 * 1024;

fn request(operation: &str) -> http::Request<()> {
    http::Request::post("http://local/")
        .header("x-amz-target", format!("Kinesis_20131202.{operation}"))
        .header("content-type", "application/x-amz-json-1.1")
        .body(())
        .expect("a request")
}

/// Creates a stream with 9 MB in its one shard. Returns an iterator at its start.
async fn large_stream(world: &ServerFixture) -> String {
    world.stream("large", 1).await;
    for _ in 0..3 {
        let entry = PutRecordsRequestEntry::builder().partition_key("key");
        let entry = entry.data(Blob::new(vec![7; 1_000_000])).build().expect("an entry");
        let put = world.kinesis.put_records().stream_name("large");
        let put = put.set_records(Some(vec![entry; 3])).send().await.expect("a put");
        assert_eq!(put.failed_record_count(), Some(0));
    }
    let iterator = world.kinesis.get_shard_iterator().stream_name("large");
    let iterator = iterator.shard_id("shardId-000000000000");
    let iterator = iterator.shard_iterator_type(ShardIteratorType::TrimHorizon).send().await;
    iterator.expect("an iterator").shard_iterator.expect("an iterator")
}

#[tokio::test]
async fn a_client_that_begins_with_http2_is_answered_in_http2() {
    let world = ServerFixture::start().await;
    let socket = TcpStream::connect(world.local.address()).await.expect("a connection");
    let (mut client, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    for (operation, body, status) in [
        ("CreateStream", r#"{"StreamName":"two","ShardCount":1}"#, 200),
        ("ListShards", r#"{"StreamName":"two"}"#, 200),
        ("ListShards", r#"{"StreamName":"absent"}"#, 400),
    ] {
        let (answer, mut send) = client.send_request(request(operation), false).expect("sent");
        send.send_data(Bytes::from(body), true).expect("sent");
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status(), status, "{operation} {body}");
        assert!(answer.headers().contains_key("x-amzn-requestid"));
        assert!(answer.headers().contains_key("date"));
    }
    world.local.stop().await;
}

/// Sends a GOAWAY as soon as the headers arrive, like the JavaScript SDK; the body must still
/// arrive. The frames are built by hand, because no client library does this.
#[tokio::test]
async fn a_body_arrives_whole_after_an_early_goaway() {
    let world = ServerFixture::start().await;
    let iterator = large_stream(&world).await;
    let body = serde_json::json!({"ShardIterator": iterator}).to_string();
    let mut frames = Frames::open(world.local.address()).await;
    frames.request("GetRecords", body.as_bytes()).await;
    let mut received = Vec::new();
    let mut went_away = false;
    loop {
        let (kind, flags, payload) = frames.next().await;
        match kind {
            frame::HEADERS if !went_away => {
                went_away = true;
                frames.goaway().await;
            }
            frame::DATA => {
                received.extend_from_slice(&payload);
                if flags & frame::END_STREAM != 0 {
                    break;
                }
                frames.open_windows(payload.len()).await;
            }
            frame::RST_STREAM => panic!("the stream was reset after {} bytes", received.len()),
            _ => {}
        }
    }
    let reply: serde_json::Value = serde_json::from_slice(&received).expect("a whole body");
    assert_eq!(reply["Records"].as_array().map(Vec::len), Some(9));
    assert!(received.len() > LARGE, "{} bytes", received.len());
    world.local.stop().await;
}

mod frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
}

/// HTTP/2 frames on a socket, with Node's window of 65,535 bytes.
struct Frames(TcpStream);

impl Frames {
    async fn open(address: std::net::SocketAddr) -> Self {
        let mut frames = Self(TcpStream::connect(address).await.expect("a connection"));
        frames.0.set_nodelay(true).expect("a live socket");
        frames.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
        frames.send(frame::SETTINGS, 0, 0, &[]).await;
        frames
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags];
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.0.write_all(&bytes).await.expect("sent");
    }

    async fn request(&mut self, operation: &str, body: &[u8]) {
        let target = format!("Kinesis_20131202.{operation}");
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "local"),
            ("x-amz-target", &target),
            ("content-type", "application/x-amz-json-1.1"),
        ] {
            // HPACK: a literal without indexing, name and value without Huffman coding.
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("a short header"));
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.send(frame::HEADERS, frame::END_HEADERS, 1, &block).await;
        self.send(frame::DATA, frame::END_STREAM, 1, body).await;
    }

    /// Returns the next frame. Answers settings and pings.
    async fn next(&mut self) -> (u8, u8, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).await.expect("a frame");
        let (kind, flags) = (head[3], head[4]);
        if matches!(kind, frame::SETTINGS | frame::PING) && flags & frame::ACK == 0 {
            let echo = if kind == frame::PING { payload.clone() } else { Vec::new() };
            self.send(kind, frame::ACK, 0, &echo).await;
        }
        (kind, flags, payload)
    }

    /// Sends a GOAWAY with no error and last stream 0, as Node does.
    async fn goaway(&mut self) {
        self.send(frame::GOAWAY, 0, 0, &[0; 8]).await;
    }

    async fn open_windows(&mut self, by: usize) {
        if by > 0 {
            let by = u32::try_from(by).expect("a short frame").to_be_bytes();
            self.send(frame::WINDOW_UPDATE, 0, 0, &by).await;
            self.send(frame::WINDOW_UPDATE, 0, 1, &by).await;
        }
    }
}
