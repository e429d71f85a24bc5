//! `cargo xtask bench multilang`: cost of the daemon with Python workers: records per second, CPU
//! per record, memory with 100 shards, and time to the first record.

use crate::dist;
use crate::server::ServerProcess;
use crate::shell::{built, program, show};
use crate::third_party;
use crate::third_party::MissingPart;
use std::process::ExitCode;

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
    let python = third_party::python().map_err(|MissingPart(why)| why)?;
    let worker = third_party::kclpy().map_err(|MissingPart(why)| why)?;
    let server = ServerProcess::anabranch(&[])?;
    let mut bench = program(&python, &["interop/multilang/bench.py"]);
    bench.env("ANABRANCH", built("anabranch")).env("PYTHON", &python).env("KCLPY", worker);
    show(server.configure(&mut bench))
}
