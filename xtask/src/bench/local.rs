//! `cargo xtask bench local`: the server's CPU per record beside ferrokinesis in the same run, its
//! memory per stored record, and the time to its ready line.

use crate::parts::{self, Missing};
use crate::server::{Server, free_port};
use crate::shell::{cargo, output, program, root, show};
use std::process::{ExitCode, Stdio};

const PEER: (&str, &str) = ("ferrokinesis", "0.7.0");
const RECORDS: &str = "200000";
const STARTS: usize = 20;

/// What the load program measured of one server, CPU in nanoseconds per record.
struct Measured {
    put_ns: f64,
    get_ns: f64,
    memory_bytes: f64,
}

pub(crate) fn run() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Result<(), String> {
    // The same selection as the tests, so that nothing is built twice with other features.
    show(&mut cargo(&["build", "--release", "--workspace", "--all-targets", "--locked"]))?;
    let peer = parts::crate_binary(PEER.0, PEER.1).map_err(|Missing(why)| why)?;

    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(Server::anabranch(&[])?.ready_after);
    }
    starts.sort_unstable();

    let ours = measure(&Server::anabranch(&[])?)?;
    let port = free_port()?;
    let mut command = program(peer, &["--port", &port.to_string(), "--shard-limit", "500"]);
    command.args(["--log-level", "error"]).stdout(Stdio::null()).stderr(Stdio::null());
    let theirs = measure(&Server::peer(&mut command, port)?)?;

    println!(
        "\n{RECORDS} records of 100 bytes, 8 shards, PutRecords of 500, GetRecords of 10,000, JSON"
    );
    println!("{:<34}{:>14}{:>14}{:>9}", "server", "anabranch", PEER.0, "ratio");
    row("CPU per put record, ns", ours.put_ns, theirs.put_ns);
    row("CPU per got record, ns", ours.get_ns, theirs.get_ns);
    row("memory per stored record, bytes", ours.memory_bytes, theirs.memory_bytes);
    println!("time to ready, median of {STARTS}: {:.1} ms", starts[STARTS / 2].as_secs_f64() * 1e3);
    Ok(())
}

fn row(what: &str, ours: f64, theirs: f64) {
    println!("{what:<34}{ours:>14.0}{theirs:>14.0}{:>8.1}x", theirs / ours);
}

/// Runs the load program against a server. It prints `put_ns get_ns memory_bytes`.
fn measure(server: &Server) -> Result<Measured, String> {
    let load = newest_load_program()?;
    let pid = server.pid().to_string();
    let text = output(server.configure(&mut program(load, &[&pid, RECORDS])))?;
    let last = text.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = last.split(' ').filter_map(|n| n.parse().ok()).collect();
    match numbers[..] {
        [put_ns, get_ns, memory_bytes] => Ok(Measured { put_ns, get_ns, memory_bytes }),
        _ => Err(format!("the load program printed {last:?}, not three numbers")),
    }
}

/// Cargo puts benches under `deps` with a hash in the name.
fn newest_load_program() -> Result<std::path::PathBuf, String> {
    let deps = root().join("target/release/deps");
    let files = std::fs::read_dir(&deps).map_err(|e| format!("{}: {e}", deps.display()))?;
    let programs = files.flatten().map(|f| f.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("load-") && path.extension().is_none()
    });
    programs
        .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
        .ok_or_else(|| "the load program was not built".to_owned())
}
