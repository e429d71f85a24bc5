//! Tests of the output of `anabranch local` at startup, as a script sees it.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_reader_that_closes_the_pipe_does_not_end_the_stream() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut process = Command::new(env!("CARGO_BIN_EXE_anabranch"))
        .args(["local", "--port", &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(process.stdout.take());
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "nobody listens on port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // It listens before it prints, so it gets time to fail at its ready line.
    std::thread::sleep(Duration::from_millis(500));
    let ended = process.try_wait().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(ended, None, "the stream ended with its reader");
}

#[test]
fn the_exports_of_one_that_listens_everywhere_can_be_connected_to() {
    for (host, endpoint, everywhere) in
        [("0.0.0.0", "http://127.0.0.1:", true), ("127.0.0.1", "http://127.0.0.1:", false)]
    {
        let mut process = Command::new(env!("CARGO_BIN_EXE_anabranch"))
            .args(["local", "--port", "0", "--host", host])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        // The note, if any, follows the five lines that every start prints.
        let lines = 5 + usize::from(everywhere);
        let text: Vec<_> = output.lines().take(lines).map_while(Result::ok).collect();
        process.kill().unwrap();
        process.wait().unwrap();
        let text = text.join("\n");
        assert!(text.contains(&format!("export AWS_ENDPOINT_URL={endpoint}")), "{text}");
        assert_eq!(text.contains("listens on every address (0.0.0.0:"), everywhere, "{text}");
    }
}
