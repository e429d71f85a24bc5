//! Fixture: a local stream in its own process, and commands against it.

use crate::killed::Client;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit for any wait.
const PATIENCE: Duration = Duration::from_mins(1);

/// A local stream, and a folder for files.
pub(crate) struct CommandFixture {
    server: Child,
    /// Endpoint URL.
    pub(crate) endpoint: String,
    /// Working folder of the commands.
    pub(crate) folder: TempDir,
    /// Kept open: the server writes to it.
    _output: BufReader<ChildStdout>,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandResult {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns the result if the exit code is 0. Panics with the output otherwise.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// Returns the program, in an environment without an AWS account.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("HOME", "nowhere").env("AWS_EC2_METADATA_DISABLED", "true");
    command
}

impl CommandFixture {
    /// Starts a local stream server with these streams, such as `orders:4`.
    pub(crate) fn start(streams: &[&str]) -> Self {
        Self::start_with(streams, &[])
    }

    /// Starts a local stream server with more options.
    pub(crate) fn start_with(streams: &[&str], options: &[&str]) -> Self {
        let mut command = program();
        command.args(["local", "--port", "0", "--state-delay", "0"]).args(options);
        for stream in streams {
            command.args(["--stream", stream]);
        }
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        let mut ready = String::new();
        output.read_line(&mut ready).unwrap();
        let endpoint = ready.trim().rsplit(' ').next().unwrap().to_owned();
        Self { server, endpoint, folder: TempDir::new().unwrap(), _output: output }
    }

    /// Returns a command against the stream.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = program();
        command.args(words.split_whitespace()).current_dir(self.folder.path());
        command.args(["--endpoint", &self.endpoint]);
        command
    }

    /// Runs a command with this input.
    pub(crate) fn run(&self, words: &str, input: &str) -> CommandResult {
        run(self.command(words), input)
    }

    /// Starts a long-running command.
    pub(crate) fn spawn(&self, words: &str) -> RunningCommand {
        RunningCommand::start(self.command(words))
    }

    /// Calls the stream's API directly.
    pub(crate) fn call(&self, operation: &str, body: &Value) -> Value {
        let address = self.endpoint.rsplit('/').next().unwrap();
        Client::connect(address).unwrap().call(operation, body).unwrap()
    }

    /// Calls the DynamoDB API directly.
    pub(crate) fn dynamodb(&self, operation: &str, body: &Value) -> Value {
        let address = self.endpoint.rsplit('/').next().unwrap();
        let target = format!("DynamoDB_20120810.{operation}");
        Client::connect(address).unwrap().send("1.0", &target, body).unwrap()
    }

    /// Injects a fault into the stream's calls.
    pub(crate) fn fault(&self, rule: &Value) {
        let address = self.endpoint.rsplit('/').next().unwrap();
        let added = Client::connect(address).unwrap().post("/_anabranch/faults", "", rule).unwrap();
        assert!(added["id"].is_u64(), "{added}");
    }

    /// Returns the data of every stored record of a stream, by shard and in order.
    pub(crate) fn stored(&self, stream: &str) -> Vec<String> {
        let shards = self.call("ListShards", &json!({"StreamName": stream}))["Shards"].clone();
        let mut data = Vec::new();
        for shard in shards.as_array().unwrap() {
            let ask = json!({"StreamName": stream, "ShardId": shard["ShardId"],
                             "ShardIteratorType": "TRIM_HORIZON"});
            let mut iterator = self.call("GetShardIterator", &ask)["ShardIterator"].clone();
            while !iterator.is_null() {
                let reply = self.call("GetRecords", &json!({"ShardIterator": iterator}));
                let records = reply["Records"].as_array().unwrap();
                for record in records {
                    let coded = record["Data"].as_str().unwrap();
                    let bytes = base64_simd::STANDARD.decode_to_vec(coded).unwrap();
                    data.push(String::from_utf8_lossy(&bytes).into_owned());
                }
                let over = records.is_empty() && reply["MillisBehindLatest"] == 0;
                iterator = if over { Value::Null } else { reply["NextShardIterator"].clone() };
            }
        }
        data
    }

    /// Returns the number of records in the first shard of a stream, without listing the shards.
    pub(crate) fn records_of_first_shard(&self, stream: &str) -> usize {
        let ask = json!({"StreamName": stream, "ShardId": "shardId-000000000000",
                         "ShardIteratorType": "TRIM_HORIZON"});
        let iterator = self.call("GetShardIterator", &ask)["ShardIterator"].clone();
        let reply = self.call("GetRecords", &json!({"ShardIterator": iterator}));
        reply["Records"].as_array().unwrap().len()
    }

    /// Splits the first open shard of a stream.
    pub(crate) fn split(&self, stream: &str) {
        let shards = self.call("ListShards", &json!({"StreamName": stream}))["Shards"].clone();
        let open = |shard: &&Value| shard["SequenceNumberRange"]["EndingSequenceNumber"].is_null();
        let shard = shards.as_array().unwrap().iter().find(open).unwrap();
        let hash =
            |end: &str| -> u128 { shard["HashKeyRange"][end].as_str().unwrap().parse().unwrap() };
        let (low, high) = (hash("StartingHashKey"), hash("EndingHashKey"));
        let middle = (low + (high - low) / 2).to_string();
        self.call(
            "SplitShard",
            &json!({"StreamName": stream, "ShardToSplit": shard["ShardId"],
                                        "NewStartingHashKey": middle}),
        );
    }
}

impl Drop for CommandFixture {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Runs a command with this input.
pub(crate) fn run(mut command: Command, input: &str) -> CommandResult {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that rejects its options reads no input.
    let writing = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let ran = CommandResult::of(child.wait_with_output().unwrap());
    writing.join().unwrap();
    ran
}

/// A running command, and its output.
pub(crate) struct RunningCommand {
    pub(crate) child: Child,
    pub(crate) out: BufReader<ChildStdout>,
}

impl RunningCommand {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Returns the next output lines.
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                let mut line = String::new();
                self.out.read_line(&mut line).unwrap();
                line.trim_end().to_owned()
            })
            .collect()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success()
        );
    }

    /// Stops it gracefully and waits for its exit.
    pub(crate) fn stop(self) -> CommandResult {
        self.signal("TERM");
        self.wait()
    }

    /// Waits for its exit.
    pub(crate) fn wait(mut self) -> CommandResult {
        let mut out = String::new();
        std::io::Read::read_to_string(&mut self.out, &mut out).unwrap();
        let mut ran = CommandResult::of(self.child.wait_with_output().unwrap());
        ran.out = out;
        ran
    }
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}
