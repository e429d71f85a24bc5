//! Exchange of aggregates with `aws_kinesis_agg` and aiokpl, in Python: each side reads the
//! other's.

use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{NewRecord, Producer};
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{ReadFrom, ShardFilter, StreamApi};
use anabranch_local::op::create_stream;
use anabranch_local::{EngineOptions, Local};
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::HashKey;
use anabranch_model::record::UserRecord;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A Python with both packages; set by `cargo xtask test`.
const PYTHON: &str = "ANABRANCH_AGGREGATES_PYTHON";

/// A user record: key, explicit hash key, data.
type ExchangeRecord = (String, Option<HashKey>, Vec<u8>);

/// Returns records of every kind that the format has: shared keys, keys beyond ASCII, explicit hash
/// keys or none, no data at all, lengths around those of a varint, data that begin like an
/// aggregate.
fn users() -> Vec<ExchangeRecord> {
    let mut users: Vec<ExchangeRecord> = Vec::new();
    for at in 0..400_usize {
        let key = match at % 5 {
            0 => "ключ".to_owned(),
            1 => "鍵-🔑".to_owned(),
            2 => format!("key-{}", at % 7),
            _ => format!("key-{at}"),
        };
        let explicit = (at % 3 == 0).then(|| HashKey(u128::MAX / 400 * at as u128));
        let bytes = [0, 1, 122, 123, 127, 128, 1_000][at % 7];
        let mut data = vec![b'a' + u8::try_from(at % 26).unwrap(); bytes];
        if at % 50 == 0 {
            data.splice(..0, *b"\xf3\x89\x9a\xc2");
        }
        users.push((key, explicit, data));
    }
    users
}

struct ExchangeFixture {
    local: Local,
    python: PathBuf,
}

impl ExchangeFixture {
    /// Returns `None` if the packages are not installed; then it prints that the test is skipped.
    async fn new(test: &str) -> Option<Self> {
        let Some(python) = std::env::var_os(PYTHON) else {
            println!("skipped {test}: {PYTHON} is not set; `cargo xtask test` sets it");
            return None;
        };
        let local = Local::builder().with_options(EngineOptions::instant()).start().await.unwrap();
        Some(Self { local, python: python.into() })
    }

    fn create(&self, name: &str, shards: i64) {
        let request = create_stream::Request {
            stream_name: Some(name.to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        self.local.engine().create_stream(&request).unwrap();
    }

    /// Runs the program with the packages, and returns its lines.
    async fn exchange(&self, args: &[&str], input: String) -> Vec<String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/aggregates/exchange.py");
        let mut command = Command::new(&self.python);
        command.arg(script).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
            .env("AWS_ENDPOINT_URL_KINESIS", self.local.endpoint())
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "local")
            .env("AWS_SECRET_ACCESS_KEY", "local");
        let ran = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let output = ran.await.unwrap();
        assert!(output.status.success(), "{args:?} ended with {}", output.status);
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Returns every user record of a stream, deaggregated as KCL does, and the number of Kinesis
    /// records.
    async fn read(&self, name: &str) -> Read {
        let (api, stream) = (AwsKinesis::new(&self.local.sdk_config()), name.into());
        let mut read = Read::default();
        for shard in api.list_shards(&stream, ShardFilter::All).await.unwrap().shards {
            let from = api.iterator(&stream, &shard.id, ReadFrom::TrimHorizon).await.unwrap();
            let fetched = api.records(&stream, &from, 10_000).await.unwrap();
            read.carriers += fetched.records.len();
            let user = |user: UserRecord| {
                let key = user.partition_key.to_string();
                (key, user.explicit_hash_key, user.data.to_vec())
            };
            for record in fetched.records {
                match decode(&record, shard.range) {
                    DecodedAggregate::Plain(_) => read.alone.push(user(record.into())),
                    DecodedAggregate::Records(records) => read.together.extend(records.map(user)),
                    other => panic!("{name}: {other:?}"),
                }
            }
        }
        read
    }
}

/// Contents of a stream.
#[derive(Default)]
struct Read {
    /// Number of Kinesis records.
    carriers: usize,
    /// User records in aggregates.
    together: Vec<ExchangeRecord>,
    /// User records outside of aggregates: their explicit hash key is not visible.
    alone: Vec<ExchangeRecord>,
}

/// Returns the written records without those that were read from aggregates.
fn without(
    who: &str,
    mut written: Vec<ExchangeRecord>,
    read: &[ExchangeRecord],
) -> Vec<ExchangeRecord> {
    for user in read {
        let at = written.iter().position(|written| written == user);
        written.swap_remove(at.unwrap_or_else(|| panic!("{who}: nobody wrote {user:?}")));
    }
    written
}

/// Returns keys and data, which is all that a plain record shows.
fn bare(users: Vec<ExchangeRecord>) -> Vec<(String, Vec<u8>)> {
    let mut bare: Vec<_> = users.into_iter().map(|(key, _, data)| (key, data)).collect();
    bare.sort();
    bare
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

/// Formats a user record as the exchange program writes it.
fn line((key, explicit, data): &ExchangeRecord) -> String {
    let explicit = explicit.map_or("-".to_owned(), |hash| hash.to_string());
    format!("{} {explicit} {}", hex(key.as_bytes()), hex(data))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_read_our_aggregates() {
    let Some(stage) = ExchangeFixture::new("others_read_our_aggregates").await else { return };
    for (name, explicit, marks) in
        [("mixed", true, false), ("plain", false, false), ("marked", true, true)]
    {
        stage.create(name, 2);
        let mapped = Arc::new(Notify::new());
        let heard = Arc::clone(&mapped);
        let events = Events::new(move |event| {
            if matches!(event, Event::Producer(ProducerEvent::ShardMapRead { .. })) {
                heard.notify_one();
            }
        });
        let builder = Producer::new(name).with_events(events).with_dedup_tags(marks);
        let producer = builder.with_kinesis(stage.local.sdk_config()).start().await.unwrap();
        // Until the list of shards arrives, records are not aggregated.
        mapped.notified().await;
        let mut put = Vec::new();
        for (key, hash, data) in users() {
            let hash = hash.filter(|_| explicit);
            let record = NewRecord::new(key.as_str(), data.clone());
            let record = match hash {
                Some(hash) => record.with_explicit_hash_key(hash),
                None => record,
            };
            drop(producer.put_record(record).await.unwrap());
            put.push((key, hash, data));
        }
        let account = producer.close(Duration::from_secs(20)).await;
        assert_eq!(account.placed, 400);
        let Read { carriers, together, alone } = stage.read(name).await;
        assert!(carriers < 20, "{name}: {carriers} records carry 400: nothing was aggregated");
        assert_eq!(bare(alone.clone()), bare(without(name, put, &together)), "{name}");
        let mut want: Vec<String> = together.iter().chain(&alone).map(line).collect();
        want.sort();
        let lines = stage.exchange(&["read", name], String::new()).await;
        let of = |who: &str| {
            let mine = lines.iter().filter_map(|line| line.strip_prefix(&format!("{who} ")));
            let mut mine: Vec<String> = mine.map(str::to_owned).collect();
            mine.sort();
            mine
        };
        assert_eq!(of("aiokpl"), want, "{name}");
        // aws_kinesis_agg gives a record without an explicit hash key the first one of the table.
        let without_hash = |lines: Vec<String>| {
            let cut = |line: &String| {
                let mut words = line.split(' ');
                (words.next().unwrap().to_owned(), words.nth(1).unwrap().to_owned())
            };
            let mut pairs: Vec<_> = lines.iter().map(cut).collect();
            pairs.sort();
            pairs
        };
        assert_eq!(without_hash(of("aws_kinesis_agg")), without_hash(want.clone()), "{name}");
        if !explicit {
            assert_eq!(of("aws_kinesis_agg"), want, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_read_the_aggregates_of_others() {
    let Some(stage) = ExchangeFixture::new("we_read_the_aggregates_of_others").await else {
        return;
    };
    for who in ["aws_kinesis_agg", "aiokpl"] {
        // One shard: aws_kinesis_agg aggregates without regard to shards, and KCL's rule would drop
        // misrouted records.
        stage.create(who, 1);
        let want = users();
        let input: String = want.iter().map(|user| line(user) + "\n").collect();
        stage.exchange(&["write", who, who], input).await;
        let Read { carriers, together, alone } = stage.read(who).await;
        assert!(carriers < 30, "{who}: {carriers} records: nothing was aggregated");
        assert_eq!(bare(alone), bare(without(who, want, &together)), "{who}");
    }
}
