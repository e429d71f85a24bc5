//! Tests of `anabranch local --data DIR` on a full disk: each reply reports it, and standard error
//! once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Maximum file size in KiB. The shell's limit simulates the full disk.
const DISK_KB: u32 = 512;

/// Puts one record of 90,000 bytes and returns the whole response.
fn put(address: &str) -> String {
    let data = "A".repeat(120_000);
    let body = format!(r#"{{"StreamName":"s","PartitionKey":"k","Data":"{data}"}}"#);
    let mut socket = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: local\r\nConnection: close\r\n\
         Content-Type: application/x-amz-json-1.1\r\n\
         X-Amz-Target: Kinesis_20131202.PutRecord\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_full_disk_is_in_every_reply_and_once_on_standard_error() {
    let folder = TempDir::new().unwrap();
    // A process that ignores the limit's signal gets a write error, as on a full disk.
    let script = format!("trap '' XFSZ; ulimit -f {DISK_KB}; exec \"$@\"");
    let mut process = Command::new("bash")
        .args(["-c", &script, "bash", env!("CARGO_BIN_EXE_anabranch")])
        .args(["local", "--port", "0", "--stream", "s", "--state-delay", "0", "--data"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    let address = ready.trim().rsplit('/').next().unwrap().to_owned();

    let answers: Vec<String> = (0..12).map(|_| put(&address)).collect();
    process.kill().unwrap();
    let mut printed = String::new();
    process.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    process.wait().unwrap();

    let taken = answers.iter().take_while(|answer| answer.contains("200 OK")).count();
    assert!(taken > 0 && taken < 10, "{taken} puts were taken");
    for refused in &answers[taken..] {
        assert!(refused.contains("cannot write to the journal"), "{refused}");
    }
    let said = printed.lines().filter(|line| line.contains("cannot write to the journal")).count();
    assert_eq!(said, 1, "{printed}");
}
