//! Tests of `tail` and `consume` across a live split on kinesis-mock, an independent Kinesis
//! emulator.

use crate::stage::{RunningCommand, program, run, until};
use crate::tail::{in_order, numbers};
use anabranch::stream::aws::AwsAccess;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::Credentials;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Folder with kinesis-mock's `main.js`, set by `cargo xtask test`.
const FOLDER: &str = "ANABRANCH_KINESIS_MOCK";
/// Node executable for it, set by `cargo xtask test`.
const NODE: &str = "ANABRANCH_NODE";

struct KinesisMock {
    process: Child,
    endpoint: String,
}

impl Drop for KinesisMock {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl KinesisMock {
    fn start(folder: &Path) -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (port, tls) = (free(), free());
        let process = Command::new(std::env::var_os(NODE).unwrap_or_else(|| "node".into()))
            .arg("main.js")
            // It reads its certificate from the current folder.
            .current_dir(folder)
            .env("INITIALIZE_STREAMS", "orders:2")
            .env("KINESIS_MOCK_PLAIN_PORT", port.to_string())
            .env("KINESIS_MOCK_TLS_PORT", tls.to_string())
            .env("LOG_LEVEL", "ERROR")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mock = Self { process, endpoint: format!("http://127.0.0.1:{port}") };
        until("kinesis-mock", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        until("its stream", || run(mock.command("shards orders"), "").code == Some(0));
        mock
    }

    fn command(&self, words: &str) -> Command {
        let mut command = program();
        command.args(words.split_whitespace()).args(["--endpoint", &self.endpoint]);
        command
    }

    fn put(&self, from: usize, to: usize) {
        let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
        let lines: Vec<String> = (from..to).map(line).collect();
        run(self.command("put orders"), &lines.join("\n")).ok();
    }

    /// Splits the first shard in half.
    fn split(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let access = AwsAccess {
                endpoint: Some(self.endpoint.clone()),
                region: Some("us-east-1".to_owned()),
                credentials: Some(Credentials::new("local", "local", None, None, "test")),
                ..AwsAccess::default()
            };
            let client = Client::new(&access.config().await.unwrap());
            let split = client.split_shard().stream_name("orders");
            let split = split.shard_to_split("shardId-000000000000");
            split.new_starting_hash_key((u128::MAX / 4).to_string()).send().await.unwrap();
        });
    }
}

#[test]
fn tail_and_consume_follow_a_live_split_of_kinesis_mock_in_order() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        println!("skipped kinesis-mock: {FOLDER} is not set; `cargo xtask test` sets it");
        return;
    };
    let mock = KinesisMock::start(Path::new(&folder));
    let leases = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", leases.path().join("leases.db").display());
    let mut readers = [
        RunningCommand::start(mock.command("tail orders --since trim --json")),
        RunningCommand::start(
            mock.command(&format!("consume orders --app a --json --leases {store}")),
        ),
    ];
    mock.put(0, 40);
    let mut lines = readers.each_mut().map(|reader| reader.lines(40));
    mock.split();
    mock.put(40, 100);
    for (reader, lines) in readers.iter_mut().zip(&mut lines) {
        lines.extend(reader.lines(60));
    }
    for reader in readers {
        assert_eq!(reader.stop().ok().out, "", "nothing comes twice");
    }
    for lines in lines {
        let mut found = numbers(&lines);
        in_order(&found);
        found.sort_unstable();
        assert_eq!(found, (0..100).collect::<Vec<_>>());
    }
}
