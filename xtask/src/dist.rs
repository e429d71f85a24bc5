//! `cargo xtask dist`: builds the release binary and checks that it is static.

use crate::shell::{built, cargo, output, profile, program, root, show};
use std::fs;
use std::process::ExitCode;

/// Folder of the binary, on every machine.
const PLACE: &str = "target/dist";

/// Type of the program header that names a loader. A static program has none.
const PT_INTERP: u32 = 3;

pub(crate) fn run() -> ExitCode {
    match dist() {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the binary.
pub(crate) fn build() -> Result<(), String> {
    let build = ["build", "--profile", profile(), "--workspace", "--bin", "anabranch", "--locked"];
    show(&mut cargo(&build))
}

fn dist() -> Result<String, String> {
    build()?;
    let binary = built("anabranch");
    let version = output(&mut program(&binary, &["--version"]))?;
    let file = fs::read(&binary).map_err(|e| format!("{}: {e}", binary.display()))?;
    let linked = match needs_loader(&file) {
        Some(false) => "static",
        Some(true) if cfg!(target_os = "linux") => {
            return Err(format!("{} is not static: it names a loader", binary.display()));
        }
        _ => "needs the system's libraries",
    };
    let size = file.len() >> 20;
    let folder = root().join(PLACE);
    let place = folder.join("anabranch");
    if place != binary {
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        fs::copy(&binary, &place).map_err(|e| format!("{}: {e}", place.display()))?;
    }
    Ok(format!("{PLACE}/anabranch: {}, {size} MiB, {linked}", version.trim()))
}

/// Returns true if a 64-bit ELF program names a loader, or `None` for another kind of file.
fn needs_loader(file: &[u8]) -> Option<bool> {
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let bytes = |at: usize, len: usize| file.get(at..at.checked_add(len)?);
    let half = |at| Some(usize::from(u16::from_le_bytes(bytes(at, 2)?.try_into().ok()?)));
    let headers_at = u64::from_le_bytes(bytes(32, 8)?.try_into().ok()?);
    let (mut at, size, count) = (usize::try_from(headers_at).ok()?, half(54)?, half(56)?);
    for _ in 0..count {
        if u32::from_le_bytes(bytes(at, 4)?.try_into().ok()?) == PT_INTERP {
            return Some(true);
        }
        at = at.checked_add(size)?;
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF program with program headers of these types.
    fn program(types: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(types.len()).unwrap();
        for kind in types {
            file.extend_from_slice(&kind.to_le_bytes());
            file.extend_from_slice(&[0; 52]);
        }
        file
    }

    #[test]
    fn a_program_that_names_a_loader_is_not_static() {
        assert_eq!(needs_loader(&program(&[1, 1, 7])), Some(false));
        assert_eq!(needs_loader(&program(&[6, 3, 1])), Some(true));
        assert_eq!(needs_loader(b"#!/bin/sh\n"), None);
        let mut cut = program(&[6, 1, 3]);
        cut.truncate(150);
        assert_eq!(needs_loader(&cut), None);
    }
}
