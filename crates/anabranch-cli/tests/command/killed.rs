//! Repeated kills of `anabranch local --data DIR --fsync always` under load: after the restart
//! every acknowledged record exists, in order.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: u64 = 8;
const WRITERS: u64 = 4;

/// The server process, with the address from its ready line.
struct Server {
    process: Child,
    address: String,
    /// Kept open: a server that can't print its ready lines exits.
    _output: BufReader<ChildStdout>,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_anabranch"))
            .args(["local", "--port", "0", "--fsync", "always", "--stream", "load:4"])
            .args(["--state-delay", "0", "--data"])
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut ready).unwrap();
        let address = ready.trim().rsplit('/').next().unwrap().to_owned();
        assert!(ready.contains("ready"), "{ready:?}");
        Self { process, address, _output: output }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A minimal HTTP connection.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(address: &str) -> Option<Self> {
        TcpStream::connect(address).ok().map(|stream| Self(BufReader::new(stream)))
    }

    pub(crate) fn call(&mut self, operation: &str, body: &Value) -> Option<Value> {
        self.send("1.1", &format!("Kinesis_20131202.{operation}"), body)
    }

    /// Calls any JSON service. Returns `None` if the server is gone.
    pub(crate) fn send(&mut self, version: &str, target: &str, body: &Value) -> Option<Value> {
        let kind = format!("application/x-amz-json-{version}");
        self.post("/", &format!("Content-Type: {kind}\r\nX-Amz-Target: {target}\r\n"), body)
    }

    /// Posts JSON to a path with additional header lines.
    pub(crate) fn post(&mut self, path: &str, head: &str, body: &Value) -> Option<Value> {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut reply = vec![0; length];
        self.0.read_exact(&mut reply).ok()?;
        if reply.is_empty() { Some(Value::Null) } else { serde_json::from_slice(&reply).ok() }
    }
}

/// Record data by shard and sequence number.
type Records = BTreeMap<(String, String), String>;

/// Puts batches until the server is gone. Returns the acknowledged records.
fn write_until_gone(address: &str, round: u64, writer: u64) -> Records {
    let mut acknowledged = Records::new();
    let Some(mut client) = Client::connect(address) else { return acknowledged };
    for batch in 0.. {
        // Any twelve base64 characters decode to nine bytes.
        let data: Vec<_> =
            (0..10).map(|at| format!("{round:02}{writer:02}{batch:06}{at:02}")).collect();
        let records: Vec<_> =
            data.iter().map(|data| json!({"PartitionKey": data, "Data": data})).collect();
        let Some(reply) =
            client.call("PutRecords", &json!({"StreamName": "load", "Records": records}))
        else {
            return acknowledged;
        };
        assert_eq!(reply["FailedRecordCount"], 0, "{reply}");
        for (entry, data) in reply["Records"].as_array().unwrap().iter().zip(data) {
            let text = |field: &str| entry[field].as_str().unwrap().to_owned();
            acknowledged.insert((text("ShardId"), text("SequenceNumber")), data);
        }
    }
    acknowledged
}

/// Splits and merges shards until the server is gone.
fn reshard_until_gone(address: &str) -> Option<()> {
    let mut client = Client::connect(address)?;
    loop {
        let shards = open_shards(&mut client)?;
        let name = |at: usize| shards[at]["ShardId"].clone();
        if shards.len() < 8 {
            // Split the widest shard, so that every shard gets records.
            let (at, start, width) = (0..shards.len())
                .map(|at| (at, hash_key(&shards[at], "StartingHashKey")))
                .map(|(at, start)| (at, start, hash_key(&shards[at], "EndingHashKey") - start))
                .max_by_key(|(_, _, width)| *width)?;
            let half = (start + width / 2 + 1).to_string();
            let split =
                json!({"StreamName": "load", "ShardToSplit": name(at), "NewStartingHashKey": half});
            client.call("SplitShard", &split)?;
        } else {
            let merge = json!({"StreamName": "load", "ShardToMerge": name(0), "AdjacentShardToMerge": name(1)});
            client.call("MergeShards", &merge)?;
        }
        thread::sleep(Duration::from_millis(15));
    }
}

fn hash_key(shard: &Value, end: &str) -> u128 {
    shard["HashKeyRange"][end].as_str().unwrap().parse().unwrap()
}

fn shards(client: &mut Client) -> Option<Vec<Value>> {
    let reply = client.call("ListShards", &json!({"StreamName": "load"}))?;
    Some(reply["Shards"].as_array()?.clone())
}

/// Returns the open shards in order of their hash ranges.
fn open_shards(client: &mut Client) -> Option<Vec<Value>> {
    let mut shards = shards(client)?;
    shards.retain(|shard| shard["SequenceNumberRange"]["EndingSequenceNumber"].is_null());
    shards.sort_by_key(|shard| hash_key(shard, "StartingHashKey"));
    Some(shards)
}

/// Reads everything and checks that each shard is in order.
fn read_all(address: &str) -> Records {
    let mut client = Client::connect(address).unwrap();
    let mut records = Records::new();
    for shard in shards(&mut client).unwrap() {
        let shard = shard["ShardId"].as_str().unwrap().to_owned();
        let at_start =
            json!({"StreamName": "load", "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"});
        let mut iterator =
            client.call("GetShardIterator", &at_start).unwrap()["ShardIterator"].clone();
        let mut last = String::new();
        while !iterator.is_null() {
            let reply = client.call("GetRecords", &json!({"ShardIterator": iterator})).unwrap();
            let batch = reply["Records"].as_array().unwrap();
            for record in batch {
                let number = record["SequenceNumber"].as_str().unwrap().to_owned();
                assert!(number.len() == 56 && number > last, "{shard}: {number} after {last}");
                last.clone_from(&number);
                let data = record["Data"].as_str().unwrap().to_owned();
                records.insert((shard.clone(), number), data);
            }
            if batch.is_empty() {
                break;
            }
            iterator = reply["NextShardIterator"].clone();
        }
    }
    records
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_process_is_killed() {
    let dir = TempDir::new().unwrap();
    let mut acknowledged = Records::new();
    for round in 0..ROUNDS {
        let server = Server::start(dir.path());
        let address = server.address.clone();
        thread::scope(|scope| {
            let address = &address;
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| scope.spawn(move || write_until_gone(address, round, writer)))
                .collect();
            scope.spawn(move || reshard_until_gone(address));
            // Each round is killed at a different point of its work.
            thread::sleep(Duration::from_millis(150 + 37 * round));
            server.kill();
            for writer in writers {
                acknowledged.extend(writer.join().unwrap());
            }
        });
        let server = Server::start(dir.path());
        let found = read_all(&server.address);
        for (place, data) in &acknowledged {
            assert_eq!(found.get(place), Some(data), "round {round}: {place:?} is lost");
        }
        server.kill();
    }
    let shards =
        acknowledged.keys().map(|(shard, _)| shard).collect::<std::collections::BTreeSet<_>>();
    println!("{} records acknowledged in {} shards", acknowledged.len(), shards.len());
    assert!(acknowledged.len() > 500 && shards.len() > 8, "too little happened to prove anything");
}

#[test]
fn a_folder_in_use_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(dir.path());
    let second = Command::new(env!("CARGO_BIN_EXE_anabranch"))
        .args(["local", "--port", "0", "--data"])
        .arg(dir.path())
        .output()
        .unwrap();
    server.kill();
    assert_eq!(second.status.code(), Some(2));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains(dir.path().to_str().unwrap()) && said.contains("in use"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}
