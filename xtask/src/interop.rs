//! Interoperability tests: real clients with default settings against `anabranch local`, over real
//! sockets.
//!
//! A client is a program under `interop/`. It reads the endpoint from the usual AWS variables and
//! prints one line per check: `ok NAME`, or `not ok NAME: WHY`. SDK clients run twice, without and
//! with TLS, and must make the same checks both times.

use crate::server::ServerProcess;
use crate::shell::{built, output, program, root};
use crate::tally::CheckTally;
use crate::third_party;
use crate::third_party::MissingPart;
use std::process::Command;

struct InteropClient {
    name: &'static str,
    /// Installs the client's dependencies and returns the command that runs it.
    prepare: fn() -> Result<Command, ClientUnavailable>,
    /// Makes the client trust a server's TLS certificate. `None` if the client runs without TLS
    /// only.
    trust: Option<TrustMethod>,
}

/// Makes a client trust the certificate of a server.
type TrustMethod = fn(&mut Command, &ServerProcess) -> Result<(), String>;

/// Reason that a client can't run.
#[derive(Debug)]
enum ClientUnavailable {
    /// The machine lacks a part. Holds the instructions to get it. The client is skipped.
    MissingPart(String),
    /// All parts are present, but the client is broken, which counts as a failure.
    Broken(String),
}

impl From<MissingPart> for ClientUnavailable {
    fn from(MissingPart(way_out): MissingPart) -> Self {
        Self::MissingPart(way_out)
    }
}

/// Password of a trust store, which holds nothing secret.
const STORE_PASSWORD: &str = "changeit";

const CLIENTS: [InteropClient; 7] = [
    InteropClient { name: "boto3", prepare: boto3, trust: Some(by_environment) },
    InteropClient { name: "cli", prepare: cli, trust: Some(by_environment) },
    InteropClient { name: "javascript", prepare: javascript, trust: Some(by_environment) },
    InteropClient { name: "go", prepare: go, trust: Some(by_environment) },
    InteropClient { name: "java", prepare: java, trust: Some(by_java_trust_store) },
    InteropClient { name: "multilang", prepare: multilang, trust: None },
    InteropClient { name: "java-daemon", prepare: java_daemon, trust: None },
];

/// Runs the named clients, or all of them.
pub(crate) fn run(names: &[&str]) -> CheckTally {
    let mut tally = CheckTally::default();
    for name in names.iter().filter(|name| !CLIENTS.iter().any(|c| c.name == **name)) {
        let known: Vec<&str> = CLIENTS.iter().map(|c| c.name).collect();
        tally.fail(name, &format!("no such client; there are {}", known.join(", ")));
    }
    for client in CLIENTS.iter().filter(|c| names.is_empty() || names.contains(&c.name)) {
        let mut command = match (client.prepare)() {
            Ok(command) => command,
            Err(unready) => {
                tally_unready(client.name, &unready, &mut tally);
                continue;
            }
        };
        let checks = run_client(client.name, &mut command, None, &mut tally);
        if client.trust.is_some() {
            let name = format!("{} (tls)", client.name);
            let with_tls = run_client(&name, &mut command, client.trust, &mut tally);
            if with_tls != checks {
                tally.fail(&name, &format!("{with_tls} checks with TLS, {checks} without"));
            }
        }
    }
    tally
}

fn tally_unready(name: &str, unready: &ClientUnavailable, tally: &mut CheckTally) {
    match unready {
        ClientUnavailable::MissingPart(way_out) => tally.skip(name, way_out),
        ClientUnavailable::Broken(why) => tally.fail(name, why),
    }
}

/// Runs a client against a new server and returns the number of its checks.
fn run_client(
    name: &str,
    command: &mut Command,
    trust: Option<TrustMethod>,
    tally: &mut CheckTally,
) -> usize {
    let server = match ServerProcess::anabranch(if trust.is_some() { &["--tls"] } else { &[] }) {
        Ok(server) => server,
        Err(why) => {
            tally.fail(name, &why);
            return 0;
        }
    };
    if let Some(Err(why)) = trust.map(|trust| trust(command, &server)) {
        tally.fail(name, &why);
        return 0;
    }
    let out = match server.configure(command).output() {
        Ok(out) => out,
        Err(error) => {
            tally.fail(name, &format!("did not start: {error}"));
            return 0;
        }
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let (mut checks, before) = (0, tally.failures());
    for line in text.lines() {
        if let Some(check) = line.strip_prefix("ok ") {
            tally.pass(&format!("{name}: {check}"));
            checks += 1;
        } else if let Some(check) = line.strip_prefix("not ok ") {
            tally.fail(&format!("{name}: {check}"), check);
            checks += 1;
        }
    }
    // A client that crashed halfway must not look like one with few checks.
    let fell_over = !out.status.success() && tally.failures() == before;
    if fell_over || checks == 0 {
        let printed = String::from_utf8_lossy(&out.stderr);
        tally.fail(name, &format!("{checks} checks, then {}\n{text}{printed}", out.status));
    }
    checks
}

/// Relies on `AWS_CA_BUNDLE` or `NODE_EXTRA_CA_CERTS`, which the client reads.
fn by_environment(_: &mut Command, server: &ServerProcess) -> Result<(), String> {
    match &server.ca_file {
        Some(_) => Ok(()),
        None => Err("the server did not print AWS_CA_BUNDLE".to_owned()),
    }
}

/// Imports the certificate into a Java trust store, because Java reads no PEM file.
fn by_java_trust_store(command: &mut Command, server: &ServerProcess) -> Result<(), String> {
    by_environment(command, server)?;
    let Some(file) = &server.ca_file else { return Ok(()) };
    // It lies beside the certificate and is removed with it.
    let store = file.with_file_name("trust.p12");
    let import = ["-importcert", "-noprompt", "-alias", "local", "-storetype", "PKCS12"];
    let mut keytool = program("keytool", &import);
    keytool.args(["-storepass", STORE_PASSWORD, "-file"]).arg(file).arg("-keystore").arg(&store);
    output(&mut keytool)?;
    let options = format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}",
        store.display()
    );
    command.env("JAVA_TOOL_OPTIONS", options);
    Ok(())
}

fn boto3() -> Result<Command, ClientUnavailable> {
    Ok(program(third_party::python()?, &["interop/boto3/conformance.py"]))
}

fn cli() -> Result<Command, ClientUnavailable> {
    let python = third_party::python()?;
    let mut command = program("bash", &["interop/cli/round_trip.sh"]);
    command.env("AWS", python.with_file_name("aws"));
    Ok(command)
}

fn javascript() -> Result<Command, ClientUnavailable> {
    let (node, packages) = third_party::node()?;
    // A module finds its packages in its own folder, so the program runs from the cache folder.
    let source = root().join("interop/javascript/round_trip.mjs");
    let copy = packages.join("round_trip.mjs");
    std::fs::copy(&source, &copy)
        .map_err(|e| ClientUnavailable::Broken(format!("{}: {e}", copy.display())))?;
    let mut command = program(node, &["round_trip.mjs"]);
    command.current_dir(packages);
    Ok(command)
}

fn go() -> Result<Command, ClientUnavailable> {
    let go = third_party::go()?;
    let binary = third_party::cache().join("go-round-trip");
    let mut build = program(go, &["build", "-o"]);
    let build = build.arg(&binary).arg(".").current_dir(root().join("interop/go"));
    compiled("Go", build)?;
    Ok(program(binary, &[]))
}

fn java() -> Result<Command, ClientUnavailable> {
    let maven = third_party::maven()?;
    let target = third_party::cache().join("java");
    let mut build = program(&maven, &["--batch-mode", "--quiet", "process-classes"]);
    let build = build
        .arg(format!("-DbuildDirectory={}", target.display()))
        .current_dir(root().join("interop/java"));
    compiled("Java", build)?;
    let classpath = format!("{0}/classes:{0}/lib/*", target.display());
    Ok(program("java", &["-cp", &classpath, "RoundTrip"]))
}

/// Prepares the official KCL workers under `anabranch multilang`.
fn multilang() -> Result<Command, ClientUnavailable> {
    let python = third_party::python()?;
    let (node, packages) = third_party::node_kcl()?;
    let mut command = program(&python, &["interop/multilang/run.py"]);
    command.env("ANABRANCH", built("anabranch")).env("KCLPY", third_party::kclpy()?);
    command.env("PYTHON", &python).env("NODE", node).env("NODE_PATH", packages);
    Ok(command)
}

/// Prepares Java's `MultiLangDaemon` and `anabranch multilang`, one after the other on one lease
/// table.
fn java_daemon() -> Result<Command, ClientUnavailable> {
    let python = third_party::python()?;
    let mut command = program(&python, &["interop/multilang/run.py", "java"]);
    command.env("ANABRANCH", built("anabranch")).env("KCLPY", third_party::kclpy()?);
    command.env("PYTHON", &python).env("KCL_DAEMON", third_party::kcl_daemon()?);
    Ok(command)
}

/// Compiles a client. The compiler is present, so an error means that the client is broken.
fn compiled(language: &str, build: &mut Command) -> Result<(), ClientUnavailable> {
    let broken =
        |why| ClientUnavailable::Broken(format!("the {language} client did not build: {why}"));
    output(build).map(drop).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_compile_counts_as_failed_and_one_without_its_parts_as_skipped() {
        let broken = compiled("Go", &mut program("false", &[])).expect_err("it did not compile");
        for (unready, failures, skips) in
            [(broken, 1, 0), (MissingPart("needs `go`".to_owned()).into(), 0, 1)]
        {
            let mut tally = CheckTally::default();
            tally_unready("go", &unready, &mut tally);
            assert_eq!((tally.failures(), tally.skips()), (failures, skips), "{unready:?}");
        }
    }
}
