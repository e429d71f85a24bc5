//! A PostgreSQL server for the tests: found on the machine, started on a free port in a temporary
//! folder, and stopped by its process id, even when a test fails.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![expect(clippy::unwrap_used, reason = "these are tests")]

pub(crate) mod bouncer;

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tempfile::TempDir;

/// The folder with `initdb` and `postgres`, if it is not in Debian's or another common location.
const FOLDER: &str = "ANABRANCH_POSTGRES_BIN";
const USER: &str = "tester";
/// A password with characters that a URL must encode.
const PASSWORD: &str = "s3cret/of#tests";
const PASSWORD_IN_URL: &str = "s3cret%2Fof%23tests";
/// Maximum number of checks that a server is ready, and the pause between them.
const LOOKS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(50);

/// A running server.
pub(crate) struct Server {
    /// Folder of its programs.
    programs: PathBuf,
    /// Its data, removed with it.
    folder: TempDir,
    /// User and group that run it: PostgreSQL refuses to run as root.
    user: Option<(u32, u32)>,
    port: u16,
    process: Mutex<Option<Child>>,
    databases: Mutex<u32>,
}

impl Server {
    /// Returns the server that the tests of one program share. Returns `None` and prints a line if
    /// PostgreSQL is not installed; in CI that is a failure.
    pub(crate) fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// Starts a separate server.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!in_ci, "PostgreSQL is missing: apt install postgresql, or set {FOLDER}");
            println!("skipped: PostgreSQL is missing: apt install postgresql, or set {FOLDER}");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let is_root = std::fs::metadata(folder.path()).unwrap().uid() == 0;
        let user = is_root.then(|| user_of("postgres").or_else(|| user_of("nobody")).unwrap());
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (process, databases) = (Mutex::new(None), Mutex::new(0));
        let server = Self { programs, folder, user, port, process, databases };
        server.make_cluster();
        server.restart();
        Some(server)
    }

    /// Creates a new database, and returns its URL.
    pub(crate) fn fresh_database(&self) -> String {
        let mut databases = self.databases.lock().unwrap();
        *databases += 1;
        let name = format!("test{}", *databases);
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the password, which no message may contain.
    pub(crate) fn password() -> &'static str {
        PASSWORD
    }

    /// Runs statements as an operator would, and returns their output.
    pub(crate) fn sql(&self, database: &str, sql: &str) -> String {
        let port = self.port.to_string();
        let to = ["-h", "127.0.0.1", "-p", &port, "-U", USER, "-d", database];
        let mut psql = self.program("psql");
        psql.args(to)
            .args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql])
            .env("PGPASSWORD", PASSWORD);
        output(&mut psql)
    }

    /// Ends the server at once, as `kill -9` does.
    pub(crate) fn kill(&self) {
        if let Some(mut process) = self.process.lock().unwrap().take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts the server on its existing data, and waits until it answers.
    pub(crate) fn restart(&self) {
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).args(["-k", self.folder.path().to_str().unwrap()]);
        let more = ["max_connections=200", "max_prepared_transactions=10"];
        for setting in ["listen_addresses=127.0.0.1", "fsync=off"].into_iter().chain(more) {
            command.args(["-c", setting]);
        }
        command.args(["-p", &self.port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut ready = self.program("pg_isready");
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        for _ in 0..LOOKS {
            let mut process = self.process.lock().unwrap();
            let running = process.as_mut().is_some_and(|p| p.try_wait().unwrap().is_none());
            if !running {
                // After a kill the old processes may need a moment to release the data.
                *process = Some(command.spawn().unwrap());
            }
            drop(process);
            std::thread::sleep(PAUSE);
            if ready.status().unwrap().success() {
                return;
            }
        }
        panic!("PostgreSQL did not start");
    }

    /// Enables TLS for `127.0.0.1`. Returns the certificate, or `None` without openssl.
    pub(crate) fn turn_tls_on(&self) -> Option<PathBuf> {
        let (key, certificate) = (self.data().join("server.key"), self.data().join("server.crt"));
        let mut openssl = self.program("openssl");
        let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
        let name = ["-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1"];
        // Not an authority: a self-signed authority is not accepted as a server.
        openssl.args(request).args(name).args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        let made = openssl.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            return None;
        }
        self.sql("postgres", "ALTER SYSTEM SET ssl = on");
        self.sql("postgres", "SELECT pg_reload_conf()");
        Some(certificate)
    }

    fn make_cluster(&self) {
        let password = self.folder.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        if let Some((uid, gid)) = self.user {
            chown(&password, Some(uid), Some(gid)).unwrap();
        }
        let mut initdb = self.program("initdb");
        initdb.arg("-D").arg(self.data()).args(["-U", USER, "-A", "scram-sha-256"]);
        // A locale that does not sort by bytes would be a stricter test, but few machines have one.
        initdb.args(["--no-sync", "-E", "UTF8", "--locale=C", "--pwfile"]).arg(&password);
        output(&mut initdb);
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn program(&self, name: &str) -> Command {
        let ours = self.programs.join(name);
        let mut command = if ours.is_file() { Command::new(ours) } else { Command::new(name) };
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        run_as(&mut command, self.user);
        command
    }
}

/// Sets the user of a command: PostgreSQL and `PgBouncer` refuse to run as root.
fn run_as(command: &mut Command, user: Option<(u32, u32)>) {
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut stop = self.program("pg_ctl");
        stop.arg("-D").arg(self.data()).args(["-m", "immediate", "stop"]);
        let _stopped = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
        self.kill();
    }
}

fn programs() -> Option<PathBuf> {
    let has_server = |folder: &PathBuf| folder.join("postgres").is_file();
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Some(PathBuf::from(folder)).filter(has_server);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("postgres"));
    // `initdb` expects its files beside the real program, not beside a link to it.
    let on_path = on_path.filter_map(|program| program.canonicalize().ok());
    let on_path = on_path.filter_map(|program| program.parent().map(Path::to_owned));
    on_path.chain(debian()).find(has_server)
}

/// Returns the folders in which Debian installs the server, newest version first.
fn debian() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|v| v.path().join("bin")).collect();
    folders.sort();
    folders.into_iter().rev()
}

fn user_of(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(str::parse);
    Some((ids.next()?.ok()?, ids.next()?.ok()?))
}

fn output(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}: {said}", out.status);
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}
