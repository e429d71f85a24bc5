//! Errors of the SDK when no server answers.

use crate::stage::StreamFixture;
use anabranch::stream::api::{PutEntry, ShardFilter, ShardIterator, StreamApi};
use anabranch::stream::{AwsKinesis, WireFormat};
use anabranch_model::ids::StreamName;
use anabranch_model::retry::Fault;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Puts one record at `address`, and returns the fault and its message.
async fn put_at(address: String) -> (Fault, String) {
    let stage = StreamFixture::new().await;
    let config = stage.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
    let api = AwsKinesis::new(&config.build());
    let entry = PutEntry { key: "k".into(), hash: None, data: "data".into() };
    let error = api.put_record(&StreamName::from("s"), &entry, None).await.unwrap_err();
    (error.fault, error.to_string())
}

#[tokio::test]
async fn a_refused_connection_sent_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (fault, words) = put_at(address).await;
    assert_eq!(fault, Fault::NotSent, "{words}");
    assert!(words.contains("PutRecord on s failed") && words.contains("refused"), "{words}");
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_leaves_its_fate_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let cut = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 64]).await.unwrap();
    };
    let ((fault, words), ()) = tokio::join!(put_at(address), cut);
    assert_eq!(fault, Fault::ReplyLost, "{words}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stage = StreamFixture::new().await;
    let config = stage.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
    let api = AwsKinesis::new(&config.build());
    let stream = StreamName::from("s");
    let (fault, words) = tokio::select! {
        biased;
        listed = api.list_shards(&stream, ShardFilter::All) => {
            let error = listed.unwrap_err();
            (error.fault, error.to_string())
        }
        () = async {
            let held = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
            drop(held);
        } => unreachable!("it waits for ever"),
    };
    assert_eq!(fault, Fault::ReplyLost, "{words}");
}

/// Reads records of an endpoint that sends the body of its reply in pieces, with a pause after
/// each, and is then silent if pieces are missing. Returns the result.
async fn read_in_pieces(pieces: usize, of: usize) -> Result<usize, (Fault, String)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stage = StreamFixture::new().await;
    let config = stage.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
    let api = AwsKinesis::speaking(WireFormat::Json, &config.build());
    let body =
        r#"{"Records":[],"NextShardIterator":"next","MillisBehindLatest":7,"ChildShards":[]}"#;
    let (stream, iterator) = (StreamName::from("s"), ShardIterator("here".into()));
    let answer = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4_096]).await.unwrap();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let size = body.len().div_ceil(of);
        for piece in body.as_bytes().chunks(size).take(pieces) {
            socket.write_all(piece).await.unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        std::future::pending::<()>().await;
    };
    let read = tokio::select! {
        biased;
        read = api.records(&stream, &iterator, 10) => read,
        () = answer => unreachable!("it waits for ever"),
    };
    match read {
        Ok(fetched) => Ok(usize::try_from(fetched.behind_ms).unwrap()),
        Err(error) => Err((error.fault, error.to_string())),
    }
}

#[tokio::test]
async fn a_reply_that_stops_half_way_is_given_up_and_a_slow_one_is_not() {
    let (stopped, slow) = tokio::join!(read_in_pieces(1, 4), read_in_pieces(4, 4));
    let (fault, words) = stopped.unwrap_err();
    assert_eq!(fault, Fault::ReplyLost, "{words}");
    assert!(words.contains("throughput"), "it is the silence, not the whole time: {words}");
    // Longer in total than any silence may be.
    assert_eq!(slow, Ok(7));
}

/// Puts large records at a server that replies before it has read them, and reads no further.
async fn put_at_hasty(format: WireFormat) -> Fault {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stage = StreamFixture::new().await;
    let config = stage.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
    let api = AwsKinesis::speaking(format, &config.build());
    let kind = if format == WireFormat::Cbor { "cbor" } else { "json" };
    let answer = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4_096]).await.unwrap();
        let reply = format!(
            "HTTP/1.1 400 X\r\ncontent-type: application/x-amz-{kind}-1.1\r\n\
             x-amzn-errortype: ResourceNotFoundException\r\ncontent-length: 0\r\n\r\n"
        );
        socket.write_all(reply.as_bytes()).await.unwrap();
        socket
    };
    let entry = PutEntry { key: "k".into(), hash: None, data: vec![b'x'; 900_000].into() };
    let (stream, entries) = (StreamName::from("s"), vec![entry; 5]);
    let (put, _held) = tokio::join!(api.put_records(&stream, &entries), answer);
    put.unwrap_err().fault
}

#[tokio::test]
async fn an_answer_that_comes_before_the_request_is_all_sent_is_heard() {
    for format in [WireFormat::Cbor, WireFormat::Json] {
        assert_eq!(put_at_hasty(format).await, Fault::Missing, "{format:?}");
    }
}
