//! The signature matches the request as sent, however its body is assembled.

use crate::stage::StreamFixture;
use anabranch::stream::api::{PutEntry, PutEntryResult, ReadFrom, ShardFilter, StreamApi};
use anabranch::stream::{AwsKinesis, WireFormat};
use anabranch_model::ids::StreamName;
use aws_sdk_kinesis::config::{Credentials, SharedCredentialsProvider};
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use aws_smithy_types::date_time::{DateTime, Format};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::SystemTime;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

const SECRET: &str = "a secret";

/// Sizes around the threshold above which data are sent without a copy.
const SIZES: [&[usize]; 5] = [
    &[100],
    &[16 * 1024],
    &[(1 << 20) - 5],
    &[16 * 1024 - 1, 16 * 1024, 1, 40_000, 40_000],
    &[200_000, 7, 7, 200_000],
];

fn entries(sizes: &[usize]) -> Vec<PutEntry> {
    let entry = |(at, size): (usize, &usize)| {
        let data: Vec<u8> = (0_u8..251).cycle().skip(at * 31).take(*size).collect();
        PutEntry { key: format!("key {at}").into(), hash: None, data: data.into() }
    };
    sizes.iter().enumerate().map(entry).collect()
}

/// A received request: its headers by lower-case name, and its body.
struct ReceivedRequest {
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// Receives one request, and refuses it.
async fn take_one(listener: &TcpListener) -> ReceivedRequest {
    let (socket, _) = listener.accept().await.unwrap();
    let mut socket = BufReader::new(socket);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.unwrap();
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    socket.read_exact(&mut body).await.unwrap();
    let refusal = format!(
        "HTTP/1.1 400 X\r\ncontent-type: {}\r\nx-amzn-errortype: ResourceNotFoundException\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n",
        headers["content-type"]
    );
    socket.write_all(refusal.as_bytes()).await.unwrap();
    ReceivedRequest { headers, body }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// Returns the signature of a request as received, and as computed by the rules of Signature
/// Version 4.
fn signature(came: &ReceivedRequest) -> (String, String) {
    let authorization = &came.headers["authorization"];
    let part = |name: &str| {
        let from = authorization.find(name).unwrap() + name.len() + 1;
        authorization[from..].split(',').next().unwrap().trim().to_owned()
    };
    let (credential, signed) = (part("Credential"), part("SignedHeaders"));
    let [_, day, region, service, _] = credential.split('/').collect::<Vec<_>>()[..] else {
        panic!("{credential}")
    };
    let line = |name| format!("{name}:{}", came.headers[name]);
    let headers = signed.split(';').map(line).collect::<Vec<_>>().join("\n");
    let canonical =
        format!("POST\n/\n\n{headers}\n\n{signed}\n{}", hex(&Sha256::digest(&came.body)));
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{}\n{day}/{region}/{service}/aws4_request\n{}",
        came.headers["x-amz-date"],
        hex(&Sha256::digest(canonical))
    );
    let date = format!("{}-{}-{}T00:00:00Z", &day[..4], &day[4..6], &day[6..]);
    let time = SystemTime::try_from(DateTime::from_str(&date, Format::DateTime).unwrap()).unwrap();
    let key = generate_signing_key(SECRET, time, region, service);
    (part("Signature"), calculate_signature(key, to_sign.as_bytes()))
}

#[tokio::test]
async fn requests_with_large_and_small_data_are_signed_for_what_they_carry() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stage = StreamFixture::new().await;
    let credentials = Credentials::new("id", SECRET, None, None, "test");
    let config = stage.sdk_config().into_builder();
    let config = config
        .endpoint_url(format!("http://{}", listener.local_addr().unwrap()))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build();
    for format in [WireFormat::Cbor, WireFormat::Json] {
        for sizes in SIZES {
            let api = AwsKinesis::speaking(format, &config);
            let (stream, entries) = (StreamName::from("s"), entries(sizes));
            let (put, came) = tokio::join!(api.put_records(&stream, &entries), take_one(&listener));
            put.expect_err("it was refused");
            let (told, right) = signature(&came);
            assert_eq!(told, right, "{format:?} {sizes:?}");
        }
    }
}

#[tokio::test]
async fn data_of_all_sizes_arrive_as_they_were_put() {
    let stage = StreamFixture::new().await;
    let api = AwsKinesis::speaking(WireFormat::Cbor, &stage.sdk_config());
    for (at, sizes) in SIZES.into_iter().enumerate() {
        let stream = StreamName::from(format!("s{at}"));
        stage.create(stream.as_str(), 1);
        let entries = entries(sizes);
        for result in api.put_records(&stream, &entries).await.unwrap() {
            assert!(matches!(result, PutEntryResult::Placed(_)), "{result:?}");
        }
        api.put_record(&stream, &entries[0], None).await.unwrap();
        let shards = api.list_shards(&stream, ShardFilter::All).await.unwrap().shards;
        let from = ReadFrom::TrimHorizon;
        let iterator = api.iterator(&stream, &shards[0].id, from).await.unwrap();
        let read = api.records(&stream, &iterator, 100).await.unwrap().records;
        let put: Vec<&Bytes> =
            entries.iter().chain(&entries[..1]).map(|entry| &entry.data).collect();
        assert!(read.iter().map(|record| &record.data).eq(put), "{sizes:?}");
    }
}
