//! Tests of `anabranch local --tls`: its output, the files that it leaves, and bad input.

use crate::stage::{CommandResult, RunningCommand, program, run};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Number of lines printed at a start with TLS.
const READY_LINES: usize = 7;

fn local(options: &[&str]) -> Command {
    let mut command = program();
    command.args(["local", "--port", "0", "--tls"]).args(options);
    command
}

/// Returns the value of an exported variable.
fn exported<'a>(lines: &'a [String], name: &str) -> &'a str {
    let mut words = lines.iter().filter_map(|line| line.strip_prefix("export "));
    let found = words.find_map(|line| {
        line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    });
    found.unwrap_or_else(|| panic!("{name} is not in {lines:?}"))
}

/// Creates a self-signed certificate and its key. Returns the names of their files.
fn pair(folder: &Path, name: &str) -> (String, String) {
    let (cert, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&cert, own.cert.pem()).unwrap();
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    (cert.display().to_string(), key.display().to_string())
}

#[test]
fn the_exports_name_the_endpoint_with_tls_and_a_file_that_goes_at_the_stop() {
    let mut server = RunningCommand::start(local(&[]));
    let lines = server.lines(READY_LINES);
    let endpoint = exported(&lines, "AWS_ENDPOINT_URL");
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{lines:?}");
    assert_eq!(lines[0], format!("anabranch local is ready at {endpoint}"));
    assert!(lines[6].starts_with("# The same without TLS: http://127.0.0.1:"), "{lines:?}");
    let file = PathBuf::from(exported(&lines, "AWS_CA_BUNDLE"));
    assert_eq!(Path::new(exported(&lines, "NODE_EXTRA_CA_CERTS")), file);
    let pem = std::fs::read_to_string(&file).unwrap();
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----"), "{pem}");
    assert!(!pem.contains("PRIVATE"), "{pem}");
    server.stop().ok();
    assert!(!file.parent().unwrap().exists(), "{} is left", file.display());
}

#[test]
fn the_data_folder_keeps_the_authority_across_restarts() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("with space");
    let starts = [(); 2].map(|()| {
        let mut command = local(&["--data"]);
        command.arg(&data);
        let mut server = RunningCommand::start(command);
        let lines = server.lines(READY_LINES);
        server.stop().ok();
        let bundle = format!("AWS_CA_BUNDLE='{}/tls/ca.pem' ", data.display());
        assert!(lines[5].contains(&bundle), "{lines:?}");
        std::fs::read_to_string(data.join("tls/ca.pem")).unwrap()
    });
    assert_eq!(starts[0], starts[1]);
}

#[test]
fn a_certificate_of_ones_own_is_named_in_the_exports() {
    let folder = TempDir::new().unwrap();
    let (cert, key) = pair(folder.path(), "own");
    let mut server = RunningCommand::start(local(&["--cert", &cert, "--key", &key]));
    let lines = server.lines(READY_LINES);
    server.stop().ok();
    assert_eq!(exported(&lines, "AWS_CA_BUNDLE"), cert);
}

#[track_caller]
fn refused(ran: &CommandResult, parts: &[&str]) {
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
    for part in parts {
        assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
    }
}

#[test]
fn bad_certificates_are_refused_with_file_reason_and_way_out() {
    let folder = TempDir::new().unwrap();
    let (one, one_key) = pair(folder.path(), "one");
    let (_, two_key) = pair(folder.path(), "two");
    let text = folder.path().join("text");
    std::fs::write(&text, "no PEM\n").unwrap();
    let text = text.display().to_string();
    for (cert, key, parts) in [
        ("missing.pem", one_key.as_str(), &["missing.pem", "No such file"][..]),
        (&one, "missing.key", &["missing.key", "No such file"]),
        (&text, &one_key, &[&text, "no certificate in PEM"]),
        (&one, &text, &[&text, "private key in PEM"]),
        (&one, &two_key, &[&two_key, "does not belong to", &one]),
    ] {
        let ran = run(local(&["--cert", cert, "--key", key]), "");
        refused(&ran, parts);
        refused(&ran, &["omit --cert and --key"]);
        assert_eq!(ran.err.trim().lines().count(), 1, "{ran:?}");
    }
}

#[test]
fn options_of_tls_need_each_other() {
    for (options, missing) in [
        (&["--tls", "--cert", "c.pem"][..], "--key <FILE>"),
        (&["--tls", "--key", "k.pem"], "--cert <FILE>"),
        (&["--cert", "c.pem", "--key", "k.pem"], "--tls"),
        (&["--tls-port", "7"], "--tls"),
        (&["--max-concurrent-streams", "0"], "1.."),
    ] {
        let mut command = program();
        command.args(["local", "--port", "0"]).args(options);
        refused(&run(command, ""), &[missing]);
    }
}

#[test]
fn a_taken_port_for_tls_is_named_with_its_option() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = run(local(&["--tls-port", &port]), "");
    refused(&ran, &[&format!("port {port} of 127.0.0.1 is in use"), "--tls-port"]);
}
