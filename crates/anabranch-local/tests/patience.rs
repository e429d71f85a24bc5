//! Clients that keep the server waiting: for a request, for its body, or to accept more of the
//! reply.

mod world;

use anabranch_local::{EngineOptions, Local};
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::{PutRecordsRequestEntry, ShardIteratorType};
use bytes::Bytes;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use world::ServerFixture;
use world::wire::RawConnection;

/// Client timeout of the server in these tests, in place of one minute.
const LIMIT: Duration = Duration::from_millis(400);

async fn impatient() -> ServerFixture {
    let builder =
        Local::builder().with_options(EngineOptions::instant()).with_client_timeout(LIMIT);
    let local = builder.start().await.expect("a free port");
    let kinesis = aws_sdk_kinesis::Client::new(&local.sdk_config());
    ServerFixture { local, kinesis }
}

async fn connect(world: &ServerFixture) -> TcpStream {
    TcpStream::connect(world.local.address()).await.expect("a connection")
}

/// Waits until the server has closed a connection. Returns the bytes received.
async fn closed(socket: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset also counts as an end.
    let _ = socket.read_to_end(&mut rest).await;
    rest
}

#[tokio::test]
async fn a_head_that_does_not_come_whole_ends_the_connection() {
    let world = impatient().await;
    for part in ["", "P", "PRI * HTTP/2.0\r\n", "POST / HTTP/1.1\r\nhost: local\r\n"] {
        let mut socket = connect(&world).await;
        socket.write_all(part.as_bytes()).await.expect("sent");
        assert_eq!(closed(&mut socket).await, b"", "{part:?}");
    }
    // One byte at a time, without an end.
    let mut socket = connect(&world).await;
    while socket.write_all(b"P").await.is_ok() {
        tokio::time::sleep(LIMIT / 8).await;
    }
    // The second request on a connection, after a good first one.
    let mut socket = connect(&world).await;
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: local\r\n\r\n").await.expect("sent");
    let mut reply = [0; 12];
    socket.read_exact(&mut reply).await.expect("an answer");
    assert_eq!(&reply, b"HTTP/1.1 200");
    socket.write_all(b"GET /hea").await.expect("sent");
    closed(&mut socket).await;
    world.local.stop().await;
}

#[tokio::test]
async fn a_connection_may_rest_between_two_requests() {
    let world = impatient().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    let (mut client, connection) =
        h2::client::handshake(connect(&world).await).await.expect("HTTP/2");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    for _ in 0..2 {
        assert_eq!(wire.kinesis("ListStreams", "{}").await.status, 200);
        let (answer, mut send) = client.send_request(request("ListStreams"), false).expect("sent");
        send.send_data(Bytes::from("{}"), true).expect("sent");
        assert_eq!(answer.await.expect("an answer").status(), 200);
        tokio::time::sleep(LIMIT * 3).await;
    }
    world.local.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_408() {
    let world = impatient().await;
    let head = "POST / HTTP/1.1\r\nhost: local\r\ncontent-length: 100\r\n\
                x-amz-target: Kinesis_20131202.ListStreams\r\n\r\n";
    let mut socket = connect(&world).await;
    socket.write_all(head.as_bytes()).await.expect("sent");
    socket.write_all(b"{").await.expect("sent");
    let answer = String::from_utf8(closed(&mut socket).await).expect("text");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("RequestTimeoutException"), "{answer}");
    // A body that arrives byte by byte.
    let (mut read, mut write) = connect(&world).await.into_split();
    write.write_all(head.as_bytes()).await.expect("sent");
    let dribble = async {
        while write.write_all(b" ").await.is_ok() {
            tokio::time::sleep(LIMIT / 8).await;
        }
    };
    let mut first = [0; 12];
    tokio::select! {
        biased;
        read = read.read_exact(&mut first) => { read.expect("an answer"); }
        () = dribble => panic!("the connection ended without an answer"),
    }
    assert_eq!(&first, b"HTTP/1.1 408");
    world.local.stop().await;
}

fn request(operation: &str) -> http::Request<()> {
    http::Request::post("http://local/")
        .header("x-amz-target", format!("Kinesis_20131202.{operation}"))
        .header("content-type", "application/x-amz-json-1.1")
        .body(())
        .expect("a request")
}

/// Returns the body of a request for nine megabytes.
async fn large_read(world: &ServerFixture) -> String {
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
    json!({"ShardIterator": iterator.expect("an iterator").shard_iterator}).to_string()
}

#[tokio::test]
async fn a_client_that_does_not_read_its_reply_loses_its_connection() {
    let world = impatient().await;
    let body = large_read(&world).await;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: local\r\ncontent-length: {}\r\n\
         x-amz-target: Kinesis_20131202.GetRecords\r\n\r\n",
        body.len()
    );
    let mut socket = connect(&world).await;
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: local\r\n\r\n").await.expect("sent");
    let mut reply = [0; 12];
    socket.read_exact(&mut reply).await.expect("an answer");
    // The connection has been counted by now.
    let open = world.local.connections().open;
    for part in [head, body] {
        socket.write_all(part.as_bytes()).await.expect("sent");
    }
    while world.local.connections().open >= open {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let received = closed(&mut socket).await.len();
    assert!(received < 9_000_000, "{received} bytes");
    world.local.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_reset_and_the_others_go_on() {
    let world = impatient().await;
    let body = large_read(&world).await;
    let consumer = world.consumer("large", "slow").await;
    let subscribe = json!({
        "ConsumerARN": consumer,
        "ShardId": "shardId-000000000000",
        "StartingPosition": {"Type": "TRIM_HORIZON"},
    });
    let (mut client, connection) = h2::client::Builder::new()
        .initial_connection_window_size(64 << 20)
        .handshake(connect(&world).await)
        .await
        .expect("HTTP/2");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    for (operation, body) in [("GetRecords", body), ("SubscribeToShard", subscribe.to_string())] {
        let (answer, mut send) = client.send_request(request(operation), false).expect("sent");
        send.send_data(Bytes::from(body), true).expect("sent");
        let mut unread = answer.await.expect("an answer").into_body();
        // Reads the data but opens no window for more.
        let end = loop {
            match unread.data().await {
                Some(Ok(_)) => {}
                end => break end,
            }
        };
        let error = end.expect("it did not end well").expect_err("it was reset");
        assert!(error.is_reset(), "{operation}: {error}");
        let (answer, mut send) = client.send_request(request("ListStreams"), false).expect("sent");
        send.send_data(Bytes::from("{}"), true).expect("sent");
        assert_eq!(answer.await.expect("an answer").status(), 200, "after {operation}");
    }
    world.local.stop().await;
}

/// Starts an HTTP/2 client that opens windows of `bytes` automatically.
async fn client_with_window(
    world: &ServerFixture,
    bytes: u32,
    tasks: &mut tokio::task::JoinSet<Result<(), h2::Error>>,
) -> h2::client::SendRequest<Bytes> {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(bytes).initial_connection_window_size(64 << 20);
    let (client, connection) = builder.handshake(connect(world).await).await.expect("HTTP/2");
    tasks.spawn(connection);
    client
}

#[tokio::test]
async fn a_reply_of_one_piece_that_is_not_read_is_reset() {
    let world = impatient().await;
    for window in [0, 1, 10] {
        let mut tasks = tokio::task::JoinSet::new();
        let mut client = client_with_window(&world, window, &mut tasks).await;
        let (answer, mut send) = client.send_request(request("ListStreams"), false).expect("sent");
        send.send_data(Bytes::from("{}"), true).expect("sent");
        let mut unread = answer.await.expect("an answer").into_body();
        let reset = async {
            loop {
                match unread.data().await {
                    Some(Ok(_)) => {}
                    end => break end,
                }
            }
        };
        let end = tokio::time::timeout(LIMIT * 10, reset).await;
        let end = end.unwrap_or_else(|_| panic!("window {window}: it is kept for ever"));
        let error = end.expect("it did not end well").expect_err("it was reset");
        assert!(error.is_reset(), "window {window}: {error}");
    }
    world.local.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_its_reply() {
    const WINDOW: u32 = 64 * 1024;
    let world = impatient().await;
    world.stream("slow", 1).await;
    let put = world.kinesis.put_record().stream_name("slow").partition_key("key");
    put.data(Blob::new(vec![7; 900_000])).send().await.expect("a put");
    let iterator = world.kinesis.get_shard_iterator().stream_name("slow");
    let iterator = iterator.shard_id("shardId-000000000000");
    let iterator = iterator.shard_iterator_type(ShardIteratorType::TrimHorizon).send().await;
    let body = json!({"ShardIterator": iterator.expect("an iterator").shard_iterator});
    let mut tasks = tokio::task::JoinSet::new();
    let mut client = client_with_window(&world, WINDOW, &mut tasks).await;
    let (answer, mut send) = client.send_request(request("GetRecords"), false).expect("sent");
    send.send_data(Bytes::from(body.to_string()), true).expect("sent");
    let mut reply = answer.await.expect("an answer").into_body();
    let (mut length, mut unreleased) = (0, 0);
    let started = std::time::Instant::now();
    while let Some(part) = reply.data().await {
        let part = part.expect("it goes on").len();
        (length, unreleased) = (length + part, unreleased + part);
        if unreleased >= WINDOW as usize / 2 {
            tokio::time::sleep(LIMIT / 16).await;
            reply.flow_control().release_capacity(unreleased).expect("released");
            unreleased = 0;
        }
    }
    assert!(length > 1_200_000, "{length} bytes");
    assert!(started.elapsed() > LIMIT * 3 / 2, "it was slow");
    world.local.stop().await;
}

/// The preface, settings, and a request for `/` as the first stream.
const FIRST_REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x0a\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x05local";

#[tokio::test]
async fn an_http2_connection_whose_client_is_dead_ends_after_its_first_request_too() {
    let world = impatient().await;
    for (case, more) in [
        ("nothing more", &b""[..]),
        ("a part of a frame's head", b"\x00\x00"),
        ("a part of a header block", b"\x00\x00\x0a\x01\x05\x00\x00\x00\x03\x82\x86"),
        ("a header block without its end", b"\x00\x00\x03\x01\x01\x00\x00\x00\x03\x82\x86\x84"),
    ] {
        let mut socket = connect(&world).await;
        socket.write_all(FIRST_REQUEST).await.expect("sent");
        let mut first = [0; 9];
        socket.read_exact(&mut first).await.expect("settings");
        socket.write_all(more).await.expect("sent");
        let end = tokio::time::timeout(LIMIT * 10, closed(&mut socket)).await;
        let read = end.unwrap_or_else(|_| panic!("{case}: it is open for ever"));
        // The reply's headers on stream 1 arrived.
        assert!(read.windows(6).any(|frame| frame == [1, 4, 0, 0, 0, 1]), "{case}: {read:?}");
    }
    world.local.stop().await;
}
