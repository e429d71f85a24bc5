//! `cargo xtask bench local`: the server's CPU per record compared with ferrokinesis in the same
//! run, its memory per stored record, and its startup time.

use crate::dist;
use crate::server::{ServerProcess, free_port};
use crate::shell::{built, cargo, output, profile, program, show};
use crate::third_party;
use crate::third_party::MissingPart;
use std::path::Path;
use std::process::{ExitCode, Stdio};

const PEER: (&str, &str) = ("ferrokinesis", "0.7.0");
const RECORDS: &str = "200000";
const STARTS: usize = 20;
/// Rounds with both servers, one after the other, so that load peaks of the machine affect both.
const ROUNDS: usize = 5;

/// Metrics that the load program reports for a server.
const FIGURES: [&str; 3] =
    ["CPU per put record, ns", "CPU per got record, ns", "memory per stored record, bytes"];

/// Metrics of one server in one round.
type Measurement = [f64; FIGURES.len()];

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
    dist::build()?;
    let load = ["build", "--profile", profile(), "--workspace", "--bench", "load", "--locked"];
    show(&mut cargo(&load))?;
    let peer = third_party::crate_binary(PEER.0, PEER.1).map_err(|MissingPart(why)| why)?;

    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(ServerProcess::anabranch(&[])?.ready_after);
    }
    starts.sort_unstable();

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        println!("round {round} of {ROUNDS}");
        ours.push(measure(&ServerProcess::anabranch(&[])?)?);
        theirs.push(measure(&start_peer(&peer)?)?);
    }

    println!(
        "\n{RECORDS} records of 100 bytes, 8 shards, PutRecords of 500, GetRecords of 10,000, JSON; \
         medians of {ROUNDS} rounds"
    );
    let (name, ratio, spread) = (PEER.0, "ratio", "least to most");
    println!("{:<34}{:>11}{name:>14}{ratio:>8}{spread:>16}", "server", "anabranch");
    for (figure, what) in FIGURES.iter().enumerate() {
        let column = |rounds: &[Measurement]| rounds.iter().map(|m| m[figure]).collect();
        row(what, column(&ours), column(&theirs));
    }
    println!("time to ready, median of {STARTS}: {:.1} ms", starts[STARTS / 2].as_secs_f64() * 1e3);
    Ok(())
}

fn start_peer(binary: &Path) -> Result<ServerProcess, String> {
    let port = free_port()?;
    let mut command = program(binary, &["--port", &port.to_string(), "--shard-limit", "500"]);
    command.args(["--log-level", "error"]).stdout(Stdio::null()).stderr(Stdio::null());
    ServerProcess::peer(&mut command, port)
}

/// Prints one metric over all rounds. Ratios are taken per round, in which both servers ran.
fn row(what: &str, ours: Vec<f64>, theirs: Vec<f64>) {
    let ratios = sorted(theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours).collect());
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    let (ours, theirs, ratio) = (median(ours), median(theirs), median(ratios));
    let spread = format!("{least:.1}x to {most:.1}x");
    println!("{what:<34}{ours:>11.0}{theirs:>14.0}{ratio:>7.1}x{spread:>16}");
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

fn median(numbers: Vec<f64>) -> f64 {
    let numbers = sorted(numbers);
    numbers[numbers.len() / 2]
}

/// Runs the load program against a server. It prints `put_ns get_ns memory_bytes`.
fn measure(server: &ServerProcess) -> Result<Measurement, String> {
    let load = newest_load_program()?;
    let pid = server.pid().to_string();
    let text = output(server.configure(&mut program(load, &[&pid, RECORDS])))?;
    let last = text.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = last.split(' ').filter_map(|n| n.parse().ok()).collect();
    numbers
        .try_into()
        .map_err(|_| format!("the load program printed {last:?}, not {} numbers", FIGURES.len()))
}

/// Returns the newest load program. Cargo puts benches under `deps` with a hash in the name.
fn newest_load_program() -> Result<std::path::PathBuf, String> {
    let deps = built("deps");
    let files = std::fs::read_dir(&deps).map_err(|e| format!("{}: {e}", deps.display()))?;
    let programs = files.flatten().map(|f| f.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("load-") && path.extension().is_none()
    });
    programs
        .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
        .ok_or_else(|| "the load program was not built".to_owned())
}
