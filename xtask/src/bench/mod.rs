//! Benchmarks, reported as ratios to a peer in the same run, never as bare times.

pub(crate) mod local;
pub(crate) mod leases;
pub(crate) mod speed;
pub(crate) mod workers;
pub(crate) mod multilang;
pub(crate) mod relay;

use crate::third_party::MissingPart;
use std::path::PathBuf;
use std::process::Command;

/// Passes the path of a third-party part to a benchmark, unless the variable is set. Benchmarks
/// skip missing parts.
fn set_env_if_present(command: &mut Command, variable: &str, part: Result<PathBuf, MissingPart>) {
    if std::env::var_os(variable).is_some() {
        return;
    }
    match part {
        Ok(path) => {
            command.env(variable, path);
        }
        Err(MissingPart(way_out)) => println!("left out: {way_out}"),
    }
}
