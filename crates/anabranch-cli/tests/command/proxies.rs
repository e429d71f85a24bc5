//! Tests of environment proxies and certificate authorities, for every command that calls AWS.

use crate::stage::{CommandFixture, CommandResult, RunningCommand, program, run};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

/// An HTTP proxy that records the head of each request.
struct Proxy {
    address: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Starts a proxy that forwards every request, or answers each with `refusal`.
    fn start(refusal: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&heads);
        thread::spawn(move || {
            for client in listener.incoming() {
                let into = Arc::clone(&into);
                thread::spawn(move || serve(client.unwrap(), refusal, &into));
            }
        });
        Self { address, heads }
    }

    /// Returns the heads received since the last call.
    fn heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

fn serve(mut client: TcpStream, refusal: Option<&str>, heads: &Mutex<Vec<String>>) -> Option<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut buffer = [0; 4_096];
        let read = client.read(&mut buffer).ok().filter(|read| *read > 0)?;
        request.extend_from_slice(&buffer[..read]);
    }
    let head = String::from_utf8_lossy(&request).into_owned();
    let target = head.split(' ').nth(1)?.trim_start_matches("http://");
    let target = target.split('/').next()?.to_owned();
    heads.lock().unwrap().push(head.clone());
    if let Some(refusal) = refusal {
        client.write_all(refusal.as_bytes()).ok()?;
        return client.shutdown(Shutdown::Both).ok();
    }
    let mut server = TcpStream::connect(target).ok()?;
    if head.starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
    } else {
        server.write_all(&request).ok()?;
    }
    let (mut from_client, mut to_server) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let _ = std::io::copy(&mut server, &mut client);
    client.shutdown(Shutdown::Both).ok()
}

/// A local stream with TLS: its endpoint, its certificate authority, and the process.
struct TlsStage {
    endpoint: String,
    bundle: String,
    folder: tempfile::TempDir,
    /// Running until the end of the test.
    server: Option<RunningCommand>,
}

impl TlsStage {
    fn start() -> Self {
        let mut command = program();
        command.args(["local", "--port", "0", "--tls", "--stream", "orders:2"]);
        command.args(["--state-delay", "0"]);
        let mut server = RunningCommand::start(command);
        let ready = server.lines(7);
        let exported = |name: &str| {
            let words = ready.iter().flat_map(|line| line.split(' '));
            let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            values.next().unwrap_or_else(|| panic!("{name} is not in {ready:?}")).to_owned()
        };
        let (endpoint, bundle) = (exported("AWS_ENDPOINT_URL"), exported("AWS_CA_BUNDLE"));
        let folder = tempfile::TempDir::new().unwrap();
        Self { endpoint, bundle, folder, server: Some(server) }
    }

    /// Returns a command that trusts the stream's certificate authority.
    fn command(&self, words: &str) -> Command {
        let mut command = program();
        command.args(words.split_whitespace()).args(["--endpoint", &self.endpoint]);
        command.env("AWS_CA_BUNDLE", &self.bundle).current_dir(self.folder.path());
        command
    }

    fn run(&self, words: &str, change: impl FnOnce(&mut Command)) -> CommandResult {
        let mut command = self.command(words);
        change(&mut command);
        run(command, "{\"key\":\"a\",\"data\":\"1\"}\n")
    }
}

impl Drop for TlsStage {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

#[test]
fn commands_reach_aws_through_the_proxy_that_the_environment_names() {
    let (stage, proxy) = (TlsStage::start(), Proxy::start(None));
    let address = format!("http://me:secret@{}", proxy.address);
    for (words, variable) in [
        ("put orders", "HTTPS_PROXY"),
        ("tail orders --until-caught-up --since 1h", "https_proxy"),
        ("shards orders", "ALL_PROXY"),
        ("doctor orders app --leases dynamodb:app", "HTTPS_PROXY"),
    ] {
        let ran = stage.run(words, |command| {
            command.env(variable, &address);
        });
        // `doctor` reports that there is no such application.
        let expected = if words.starts_with("doctor") { ran.code } else { Some(0) };
        assert_eq!(ran.code, expected, "{words}: {ran:?}");
        assert!(!ran.err.contains("nothing answers"), "{words}: {ran:?}");
        let heads = proxy.heads();
        let target = stage.endpoint.trim_start_matches("https://");
        assert!(!heads.is_empty(), "{words} asked no proxy: {ran:?}");
        for head in heads {
            assert!(head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")), "{head}");
            let lower = head.to_lowercase();
            assert!(lower.contains("proxy-authorization: basic bwu6c2vjcmv0\r\n"), "{head}");
        }
    }
}

#[test]
fn no_proxy_names_exceptions() {
    let (stage, proxy) = (TlsStage::start(), Proxy::start(None));
    let ran = stage.run("shards orders", |command| {
        command.env("HTTPS_PROXY", format!("http://{}", proxy.address));
        command.env("NO_PROXY", "example.com,127.0.0.1");
    });
    ran.ok();
    assert_eq!(proxy.heads(), Vec::<String>::new());
}

#[test]
fn plain_http_goes_through_its_proxy_too() {
    let (stage, proxy) = (CommandFixture::start(&["orders:1"]), Proxy::start(None));
    let mut command = stage.command("shards orders");
    command.env("HTTP_PROXY", format!("http://{}", proxy.address));
    run(command, "").ok();
    let heads = proxy.heads();
    assert!(!heads.is_empty());
    for head in heads {
        assert!(head.starts_with(&format!("POST {}/ HTTP/1.1\r\n", stage.endpoint)), "{head}");
    }
}

#[test]
fn a_proxy_that_refuses_is_named_without_its_password() {
    const REFUSAL: &str = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
    let (stage, proxy) = (TlsStage::start(), Proxy::start(Some(REFUSAL)));
    let ran = stage.run("shards orders", |command| {
        command.env("HTTPS_PROXY", format!("http://me:secret@{}", proxy.address));
    });
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains(&proxy.address) && ran.err.contains("407"), "{ran:?}");
    assert!(!ran.err.contains("secret"), "{ran:?}");
}

#[test]
fn a_mistake_in_the_environment_is_named_before_anything_is_done() {
    let stage = TlsStage::start();
    let not_pem = stage.folder.path().join("not.pem");
    std::fs::write(&not_pem, "no certificate").unwrap();
    for (variable, value, expected) in [
        ("AWS_CA_BUNDLE", "missing.pem", "cannot use missing.pem from AWS_CA_BUNDLE"),
        ("AWS_CA_BUNDLE", "not.pem", "it holds no certificate"),
        ("HTTPS_PROXY", "socks5://me:secret@localhost", "HTTPS_PROXY is not the address of"),
    ] {
        let ran = stage.run("shards orders", |command| {
            command.env(variable, value);
        });
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(expected) && !ran.err.contains("secret"), "{ran:?}");
    }
}

#[test]
fn an_unknown_authority_is_named_with_the_way_out() {
    let stage = TlsStage::start();
    let ran = stage.run("shards orders", |command| {
        command.env_remove("AWS_CA_BUNDLE");
    });
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("certificate") && ran.err.contains("AWS_CA_BUNDLE"), "{ran:?}");
}
