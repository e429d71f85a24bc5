//! An HTTP/2 stream that the server refused had no effect, and is reported as such.

use anabranch::http_client::HttpClient;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, StreamApi};
use anabranch_local::Local;
use anabranch_model::ids::StreamName;
use anabranch_model::retry::Fault;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// `RST_STREAM` of stream 1 with `REFUSED_STREAM`.
const REFUSED_STREAM: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];
/// `RST_STREAM` of stream 1 with `INTERNAL_ERROR`.
const INTERNAL_ERROR: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2];
/// GOAWAY with the last stream 0 and `NO_ERROR`: stream 1 was not processed.
const GOAWAY_BELOW: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// GOAWAY with the last stream 1 and `NO_ERROR`: stream 1 is being processed.
const GOAWAY_ABOVE: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

/// Puts a record at a server that answers its HTTP/2 stream with `frames` and closes.
async fn put_at(frames: &[u8]) -> (Fault, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut tls = acceptor.accept(socket).await.unwrap();
        tls.write_all(SETTINGS).await.unwrap();
        // The preface, SETTINGS and a window are 24 + some 40 bytes; the rest is the request.
        let mut read = 0;
        while read < 300 {
            read += tls.read(&mut [0; 4_096]).await.unwrap();
        }
        tls.write_all(frames).await.unwrap();
        tls.flush().await.unwrap();
        let _ = tls.shutdown().await;
        while tls.read(&mut [0; 4_096]).await.is_ok_and(|read| read > 0) {}
    };
    let local = Local::start().await.unwrap();
    let config = local.sdk_config().into_builder().endpoint_url(format!("https://{address}"));
    let client = HttpClient::with_trusted_pem(&cert.pem()).unwrap();
    let api = AwsKinesis::new(&config.http_client(client).build());
    let (stream, entry) =
        (StreamName::from("s"), PutEntry { key: "k".into(), hash: None, data: "data".into() });
    let (put, ()) = tokio::join!(api.put_record(&stream, &entry, None), answer);
    let error = put.unwrap_err();
    (error.fault, error.to_string())
}

/// Closes every incoming connection.
async fn close_all(listener: &TcpListener) {
    loop {
        drop(listener.accept().await.unwrap());
    }
}

/// A port that is open without a server behind it, like a published port of a stopped Docker image.
#[tokio::test]
async fn connections_that_are_closed_at_once_are_no_reason_to_make_more_of_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let local = Local::start().await.unwrap();
    let config = local.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
    let client = HttpClient::from_env().unwrap();
    let api = AwsKinesis::new(&config.http_client(client.clone()).build());
    let (stream, entry) =
        (StreamName::from("s"), PutEntry { key: "k".into(), hash: None, data: "data".into() });
    for _ in 0..50 {
        let put = tokio::select! {
            biased;
            put = api.put_record(&stream, &entry, None) => put,
            () = close_all(&listener) => unreachable!("it goes on"),
        };
        let fault = put.unwrap_err().fault;
        assert!(matches!(fault, Fault::NotSent | Fault::ReplyLost), "{fault:?}");
    }
    assert_eq!(client.connections().made, 50);
}

#[tokio::test]
async fn only_a_stream_that_the_server_refused_was_not_applied() {
    for (name, frames, expected) in [
        ("REFUSED_STREAM", REFUSED_STREAM, Fault::NotSent),
        ("GOAWAY, last stream 0", GOAWAY_BELOW, Fault::NotSent),
        ("GOAWAY, last stream 1", GOAWAY_ABOVE, Fault::ReplyLost),
        ("INTERNAL_ERROR", INTERNAL_ERROR, Fault::ReplyLost),
        ("the end of the connection", &[], Fault::ReplyLost),
    ] {
        let (fault, words) = put_at(frames).await;
        assert_eq!(fault, expected, "{name}: {words}");
    }
}
