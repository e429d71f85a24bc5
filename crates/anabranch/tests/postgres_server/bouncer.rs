//! A `PgBouncer` in front of a test server: each transaction of a client may run on another
//! connection to the server.

use super::{PASSWORD, PAUSE, Server, USER, output, run_as};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// The program, if it is not in Debian's location.
const PROGRAM: &str = "ANABRANCH_PGBOUNCER";
/// Maximum number of checks that it is ready.
const LOOKS: u32 = 200;
/// The first version that supports prepared statements in transaction mode.
const FOLLOWS_STATEMENTS: (u32, u32) = (1, 21);

/// A running `PgBouncer`. Its pools have two connections each.
pub(crate) struct Bouncer {
    /// The server behind it.
    pub(crate) server: Arc<Server>,
    /// Its settings and its log.
    folder: TempDir,
    port: u16,
    process: Child,
}

impl Bouncer {
    /// Starts one in transaction mode with `max_prepared_statements`. Returns `None` and prints a
    /// line if no version that supports the setting is installed; in CI that is a failure.
    pub(crate) fn start(max_prepared_statements: u32) -> Option<Self> {
        Self::start_with(max_prepared_statements, "")
    }

    /// Does the same with more settings, one on each line.
    pub(crate) fn start_with(max_prepared_statements: u32, more: &str) -> Option<Self> {
        let server = Server::shared()?;
        let Some(program) = program() else {
            return missing("PgBouncer is missing");
        };
        let version = output(Command::new(&program).arg("--version"));
        let follows = version_of(&version) >= FOLLOWS_STATEMENTS;
        if max_prepared_statements > 0 && !follows {
            let version = version.lines().next().unwrap_or_default();
            return missing(&format!("{version} has no max_prepared_statements (1.21 or later)"));
        }
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let users = write("users", format!("\"{USER}\" \"{PASSWORD}\"\n"));
        let statements = if follows {
            format!("max_prepared_statements = {max_prepared_statements}\n")
        } else {
            String::new()
        };
        let settings = write(
            "pgbouncer.ini",
            format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\npool_mode = transaction\n\
                 default_pool_size = 2\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
                 unix_socket_dir =\nauth_type = trust\nauth_file = {}\nlogfile = {}\n{statements}{more}",
                server.port,
                users.display(),
                folder.path().join("log").display(),
            ),
        );
        let mut command = Command::new(program);
        command.arg("--quiet").arg(&settings).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = server.user {
            for path in [folder.path(), &users, &settings] {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        run_as(&mut command, server.user);
        let process = command.current_dir(folder.path()).spawn().unwrap();
        let mut bouncer = Self { server, folder, port, process };
        bouncer.wait();
        Some(bouncer)
    }

    /// Returns the URL of the same database through `PgBouncer`.
    pub(crate) fn before(&self, url: &str) -> String {
        url.replace(&format!(":{}/", self.server.port), &format!(":{}/", self.port))
    }

    fn wait(&mut self) {
        for _ in 0..LOOKS {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            let ended = self.process.try_wait().unwrap();
            let said = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(ended.is_none(), "PgBouncer ended: {said}");
            std::thread::sleep(PAUSE);
        }
        panic!("PgBouncer did not start");
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

fn missing<T>(why: &str) -> Option<T> {
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!in_ci, "{why}: apt install pgbouncer, or set {PROGRAM}");
    println!("skipped: {why}: apt install pgbouncer, or set {PROGRAM}");
    None
}

fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM) {
        return Some(PathBuf::from(program)).filter(|program| program.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}

/// Parses major and minor version, as in `PgBouncer 1.18.0`.
fn version_of(text: &str) -> (u32, u32) {
    let number = text.split_ascii_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
