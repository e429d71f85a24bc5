//! What the SDK says when nobody answers.

use crate::stage::Stage;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{Entry, StreamApi};
use anabranch_model::ids::StreamName;
use anabranch_model::retry::Fault;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// Puts one record at `address`, and gives the fault and its words.
async fn put_at(address: String) -> (Fault, String) {
    let stage = Stage::new().await;
    let config = stage.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
    let api = AwsKinesis::new(&config.build());
    let entry = Entry { key: "k".into(), hash: None, data: "data".into() };
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
    let (fault, words) = tokio::select! {
        biased;
        outcome = put_at(address) => outcome,
        () = async {
            let held = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
            drop(held);
        } => unreachable!("it waits for ever"),
    };
    assert_eq!(fault, Fault::ReplyLost, "{words}");
}
