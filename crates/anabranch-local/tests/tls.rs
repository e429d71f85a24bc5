//! TLS on a second port: with the AWS SDK for Rust, and by hand for details that a client hides.

mod world;

use anabranch_local::{Connections, EngineOptions, Local, LocalBuilder, Tls};
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::{
    ShardIteratorType, StartingPosition, SubscribeToShardEventStream as Event,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use world::ServerFixture;

/// Time limit for any step of a test.
const PATIENCE: Duration = Duration::from_secs(10);

fn builder() -> LocalBuilder {
    Local::builder().with_options(EngineOptions::instant()).with_tls(Tls::generated())
}

async fn start(builder: LocalBuilder) -> ServerFixture {
    let local = builder.start().await.expect("two free ports");
    let config = local.tls_sdk_config().expect("it listens with TLS");
    ServerFixture { kinesis: aws_sdk_kinesis::Client::new(&config), local }
}

/// Opens a connection that trusts the stream's authority and offers these protocols.
async fn connect(
    local: &Local,
    name: &str,
    alpn: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    let pem = local.ca_pem().expect("it listens with TLS");
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("an anchor");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let socket = TcpStream::connect(local.tls_address().expect("it listens with TLS")).await?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

fn alpn(stream: &TlsStream<TcpStream>) -> Option<&[u8]> {
    stream.get_ref().1.alpn_protocol()
}

fn health() -> http::Request<()> {
    http::Request::get("https://local/health").body(()).expect("a request")
}

#[tokio::test]
async fn records_of_the_sdk_go_in_and_out_over_tls() {
    let world = start(builder()).await;
    world.stream("orders", 2).await;
    world.put_numbered("orders", 0..40).await;
    let (first, _) = world.read("orders", "shardId-000000000000").await;
    let (second, _) = world.read("orders", "shardId-000000000001").await;
    assert_eq!(first.len() + second.len(), 40);
    assert_eq!(world.local.connections(), Connections { accepted: 0, open: 0 });
    // The SDK uses HTTP/2, with one connection for all calls.
    assert_eq!(world.local.tls_connections(), Some(Connections { accepted: 1, open: 1 }));
    assert!(world.local.tls_endpoint().expect("a URL").starts_with("https://127.0.0.1:"));
    world.local.stop().await;
}

#[tokio::test]
async fn both_ports_serve_the_same_streams_and_tables() {
    let world = start(builder()).await;
    world.stream("orders", 1).await;
    let plain = aws_sdk_kinesis::Client::new(&world.local.sdk_config());
    let listed = plain.list_streams().send().await.expect("a list");
    assert_eq!(listed.stream_names(), ["orders"]);

    let config = world.local.tls_sdk_config().expect("it listens with TLS");
    let tables = aws_sdk_dynamodb::Client::new(&config).list_tables().send().await;
    assert!(tables.expect("a list").table_names().is_empty());
    let state = world.local.connections();
    assert_eq!((state.accepted, state.open), (1, 1));
    world.local.stop().await;
}

#[tokio::test]
async fn a_subscription_delivers_over_tls() {
    let world = start(builder()).await;
    world.stream("orders", 1).await;
    world.put_numbered("orders", 0..10).await;
    let consumer = world.consumer("orders", "fan").await;
    let from = StartingPosition::builder().r#type(ShardIteratorType::TrimHorizon).build();
    let subscribe = world.kinesis.subscribe_to_shard().consumer_arn(consumer);
    let subscribe = subscribe.shard_id("shardId-000000000000");
    let subscribe = subscribe.starting_position(from.expect("a position"));
    let mut events = subscribe.send().await.expect("a subscription").event_stream;
    let mut numbers = Vec::new();
    while numbers.len() < 10 {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time");
        if let Some(Event::SubscribeToShardEvent(event)) = event.expect("an event") {
            numbers.extend(event.records().iter().map(world::number));
        }
    }
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    world.local.stop().await;
}

#[tokio::test]
async fn the_client_chooses_the_protocol_and_the_name() {
    let world = start(builder()).await;
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (&["http/1.1", "h2"], Some(b"h2")),
        (&["http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = connect(&world.local, "localhost", offered).await.expect("a handshake");
        assert_eq!(alpn(&stream), chosen, "{offered:?}");
    }
    for name in ["localhost", "127.0.0.1", "::1", "host.docker.internal"] {
        connect(&world.local, name, &["h2"]).await.expect(name);
    }
    connect(&world.local, "example.com", &["h2"]).await.expect_err("another name");
    connect(&world.local, "localhost", &["spdy/1"]).await.expect_err("another protocol");
    world.local.stop().await;
}

#[tokio::test]
async fn http1_and_http2_are_answered_over_tls() {
    let world = start(builder()).await;
    let mut one = connect(&world.local, "localhost", &["http/1.1"]).await.expect("a handshake");
    one.write_all(b"GET /health HTTP/1.1\r\nhost: local\r\nconnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut text = String::new();
    one.read_to_string(&mut text).await.expect("a whole answer and a proper end");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");

    let two = connect(&world.local, "localhost", &["h2"]).await.expect("a handshake");
    let (mut client, connection) = h2::client::handshake(two).await.expect("HTTP/2");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    let (answer, _) = client.send_request(health(), true).expect("sent");
    assert_eq!(answer.await.expect("an answer").status(), 200);
    world.local.stop().await;
}

#[tokio::test]
async fn a_connection_has_no_more_streams_than_the_server_allows() {
    let world = start(builder().with_max_concurrent_streams(5)).await;
    let tls = connect(&world.local, "localhost", &["h2"]).await.expect("a handshake");
    let plain = TcpStream::connect(world.local.address()).await.expect("a connection");
    let mut tasks = tokio::task::JoinSet::new();
    let (tls, connection) = h2::client::handshake(tls).await.expect("HTTP/2");
    tasks.spawn(connection);
    let (plain, connection) = h2::client::handshake(plain).await.expect("HTTP/2");
    tasks.spawn(connection);
    for client in [tls, plain] {
        let (answer, _) = client.clone().send_request(health(), true).expect("sent");
        answer.await.expect("an answer, which comes after the server's settings");
        assert_eq!(client.current_max_send_streams(), 5);
    }
    world.local.stop().await;
}

#[tokio::test]
async fn calls_go_on_across_goaways() {
    let world = start(builder().with_goaway_after(4)).await;
    world.stream("orders", 1).await;
    for number in 0..40 {
        let put = world.kinesis.put_record().stream_name("orders").partition_key("key");
        put.data(Blob::new(number.to_string())).send().await.expect("a put");
    }
    let (records, _) = world.read("orders", "shardId-000000000000").await;
    let numbers: Vec<u32> = records.into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    let connections = world.local.tls_connections().expect("it listens with TLS");
    assert!(connections.accepted >= 10, "{connections:?}");
    world.local.stop().await;
}

#[tokio::test]
async fn a_goaway_comes_after_its_request_and_not_before() {
    let world = start(builder().with_goaway_after(3)).await;
    let stream = connect(&world.local, "localhost", &["h2"]).await.expect("a handshake");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    for _ in 0..3 {
        client = client.ready().await.expect("the connection is open");
        let (answer, _) = client.send_request(health(), true).expect("sent");
        assert_eq!(answer.await.expect("an answer").status(), 200);
    }
    let ended = tokio::time::timeout(PATIENCE, tasks.join_next()).await.expect("it ends in time");
    ended.expect("a connection").expect("no panic").expect("a GOAWAY without an error");
    world.local.stop().await;
}

/// Checks that the server leaves closing to the client. If the server closed first, Node would drop
/// everything unread.
#[tokio::test]
async fn a_client_that_said_goodbye_closes_first() {
    let world = start(builder()).await;
    let mut stream = connect(&world.local, "localhost", &["h2"]).await.expect("a handshake");
    // The preface, empty settings and a GOAWAY without an error. None of them needs an answer.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.expect("sent");
    let goaway = [[0, 0, 8, 7, 0, 0, 0, 0, 0].as_slice(), &[0; 8]].concat();
    stream.write_all(&goaway).await.expect("sent");
    let mut bytes = Vec::new();
    let early = tokio::time::timeout(Duration::from_secs(1), stream.read_to_end(&mut bytes)).await;
    assert!(early.is_err(), "the server closed first, after {} bytes", bytes.len());
    let stopped = tokio::time::timeout(Duration::from_secs(2), world.local.stop()).await;
    stopped.expect("a stop waits for no client");
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    end.expect("an end in time").expect("a proper end");
}

#[tokio::test]
async fn clients_that_never_complete_a_handshake_hold_nobody_back() {
    let world = start(builder()).await;
    let address = world.local.tls_address().expect("it listens with TLS");
    let mut silent = Vec::new();
    for _ in 0..50 {
        let mut socket = TcpStream::connect(address).await.expect("a connection");
        // The start of a `ClientHello`.
        socket.write_all(&[22, 3, 1]).await.expect("sent");
        silent.push(socket);
    }
    tokio::time::timeout(PATIENCE, world.stream("orders", 1)).await.expect("calls go on");
    let stopped = tokio::time::timeout(Duration::from_secs(3), world.local.stop()).await;
    stopped.expect("the stop does not wait for handshakes");
}

#[tokio::test]
async fn a_client_of_the_wrong_port_is_told_and_let_go() {
    let world = start(builder()).await;
    let tls = world.local.tls_address().expect("it listens with TLS");
    let mut wrong = TcpStream::connect(tls).await.expect("a connection");
    wrong.write_all(b"GET / HTTP/1.1\r\nhost: local\r\n\r\n").await.expect("sent");
    let mut text = String::new();
    let read = tokio::time::timeout(PATIENCE, wrong.read_to_string(&mut text));
    read.await.expect("an end in time").expect("an answer");
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("https://"), "{text}");

    let mut wrong = TcpStream::connect(world.local.address()).await.expect("a connection");
    wrong.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 13, 10, 13, 10]).await.expect("sent");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, wrong.read_to_end(&mut bytes));
    // The server answers 400 or resets the connection. It does not wait for more.
    let _ = read.await.expect("an end in time");
    for _ in 0..100 {
        let open = world.local.tls_connections().expect("it listens with TLS").open;
        if (world.local.connections().open, open) == (0, 0) {
            return world.local.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("connections stay open: {:?}", world.local.connections());
}

#[tokio::test]
async fn a_certificate_of_ones_own_is_shown_and_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(&cert, own.cert.pem()).expect("written");
    std::fs::write(&key, own.signing_key.serialize_pem()).expect("written");
    let tls = Tls::from_pem_files(&cert, &key).expect("a pair");
    let world = start(Local::builder().with_options(EngineOptions::instant()).with_tls(tls)).await;
    assert_eq!(world.local.ca_pem(), Some(own.cert.pem().as_str()));
    world.stream("orders", 1).await;
    world.local.stop().await;
}

#[tokio::test]
async fn clients_trust_a_restart_of_a_kept_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let start_kept = || start(builder().with_tls(Tls::kept_in(folder.path())));
    let first = start_kept().await;
    let second = start_kept().await;
    assert_eq!(first.local.ca_pem(), second.local.ca_pem());
    second.stream("orders", 1).await;
    first.local.stop().await;
    second.local.stop().await;
}

#[test]
fn files_that_are_no_certificate_and_key_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["one", "two"] {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a pair");
        std::fs::write(path(&format!("{name}.pem")), own.cert.pem()).expect("written");
        std::fs::write(path(&format!("{name}.key")), own.signing_key.serialize_pem())
            .expect("written");
    }
    std::fs::write(path("text"), "no PEM at all\n").expect("written");
    std::fs::write(path("binary"), [0xff, 0xfe, 0]).expect("written");
    for (cert, key, parts) in [
        ("none.pem", "one.key", &["cannot read", "none.pem", "No such file"][..]),
        ("one.pem", "none.key", &["cannot read", "none.key", "No such file"]),
        ("text", "one.key", &["text", "no certificate in PEM"]),
        ("binary", "one.key", &["binary", "not PEM"]),
        ("one.pem", "text", &["text", "no unencrypted private key"]),
        ("one.key", "one.pem", &["one.key", "no certificate in PEM"]),
        ("one.pem", "two.key", &["two.key", "does not belong to", "one.pem"]),
    ] {
        let refused = Tls::from_pem_files(path(cert), path(key)).expect_err(cert).to_string();
        for part in parts {
            assert!(refused.contains(part), "{part:?} is not in {refused:?}");
        }
    }
}
