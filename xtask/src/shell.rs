//! Execution of other programs from the repository's root, with output captured or shown.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Build profile of this run.
static PROFILE: OnceLock<String> = OnceLock::new();

/// Profile of the shipped binary, for benchmarks.
const SHIPPED: &str = "dist";
/// Profile of the same code with a faster build, for tests.
const QUICK: &str = "quick";

/// Returns the repository's root.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Builds with full optimization from now on, but not as a single codegen unit, which takes long.
pub(crate) fn use_release() {
    let _ = PROFILE.set("release".to_owned());
}

/// Builds with the shipped profile from now on, unless `XTASK_PROFILE` sets another one.
pub(crate) fn use_shipped() {
    let chosen = std::env::var("XTASK_PROFILE").unwrap_or_else(|_| SHIPPED.to_owned());
    let _ = PROFILE.set(chosen);
}

/// Returns the explicit target for the shipped binary. With an explicit target, cargo does not
/// apply its flags to build scripts and macros, which can't be linked statically. `None` for other
/// profiles and platforms without a static C library.
fn static_target() -> Option<String> {
    let is_gnu = cfg!(all(target_os = "linux", target_env = "gnu"));
    let is_shipped = profile() == SHIPPED;
    (is_gnu && is_shipped).then(|| format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
}

/// Returns the build profile of this run. `XTASK_PROFILE` overrides the default for tests.
pub(crate) fn profile() -> &'static str {
    PROFILE.get_or_init(|| std::env::var("XTASK_PROFILE").unwrap_or_else(|_| QUICK.to_owned()))
}

/// Returns the path of a built program of this workspace.
pub(crate) fn built(name: &str) -> PathBuf {
    root().join("target").join(static_target().unwrap_or_default()).join(profile()).join(name)
}

/// Returns a command for the cargo that runs this program.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).stdin(Stdio::null());
    if let Some(target) = static_target() {
        // A fixed address needs no relocations, so fewer pages become private to the process.
        let flags = "-C target-feature=+crt-static -C relocation-model=static";
        command.env("CARGO_BUILD_TARGET", target).env("RUSTFLAGS", flags);
    }
    // Remove cargo's variables about this package. Some build scripts watch them and would run
    // again, with all dependents, after a build from the command line.
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_about_package(name)) {
        command.env_remove(name);
    }
    command
}

fn is_about_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Returns a command that runs from the repository's root.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command with its output shown. The error names the command.
pub(crate) fn show(command: &mut Command) -> Result<(), String> {
    println!("$ {}", line(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", line(command))),
        Err(error) => Err(format!("`{}` did not start: {error}", line(command))),
    }
}

/// Runs a command quietly and returns its standard output. The error contains the end of its
/// output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("`{}` did not start: {e}", line(command)))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(text);
    }
    let printed = text + &String::from_utf8_lossy(&out.stderr);
    let from = printed.lines().count().saturating_sub(20);
    let end: Vec<&str> = printed.lines().skip(from).collect();
    Err(format!("`{}` ended with {}:\n{}", line(command), out.status, end.join("\n")))
}

/// Returns true if the program runs successfully with `version_flag`.
pub(crate) fn is_there(name: &str, version_flag: &str) -> bool {
    output(Command::new(name).arg(version_flag).stdin(Stdio::null())).is_ok()
}

/// Formats a command as typed in a shell.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|w| w.to_string_lossy()).collect();
    let text = words.join(" ");
    text.replace(&format!("{}/", root().display()), "")
}
