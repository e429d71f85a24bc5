//! Benchmarks: ratios to a peer in the same run, never a bare time.

pub(crate) mod local;
pub(crate) mod leases;
pub(crate) mod speed;
pub(crate) mod workers;
pub(crate) mod multilang;
pub(crate) mod relay;

use crate::third_party::MissingPart;
use std::path::PathBuf;
use std::process::Command;

/// Tells a benchmark where a part is. It leaves out what is missing.
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
