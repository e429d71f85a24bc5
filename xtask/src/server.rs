//! Server under test: started on a free port and killed on drop.

use crate::shell::{built, program};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server process. Dropping it kills the process and waits for it.
pub(crate) struct ServerProcess {
    child: Child,
    /// Rest of its output. Kept open, so that a late line does not break its pipe.
    #[expect(dead_code, reason = "held, never read")]
    output: Option<BufReader<ChildStdout>>,
    /// Endpoint, `http://127.0.0.1:PORT`, or `https://` with TLS.
    pub(crate) endpoint: String,
    /// Certificate that clients trust, with TLS, in its own temporary folder.
    pub(crate) ca_file: Option<PathBuf>,
    /// Time from the start of the process to its ready line or its first accepted connection.
    pub(crate) ready_after: Duration,
}

impl ServerProcess {
    /// Starts `anabranch local` with additional options on free ports. With `--tls`, the endpoint
    /// is the TLS one.
    pub(crate) fn anabranch(options: &[&str]) -> Result<Self, String> {
        let binary = built("anabranch");
        let mut command = program(binary, &["local", "--port", "0"]);
        let started = Instant::now();
        let mut child = spawn(command.args(options).stdout(Stdio::piped()))?;
        let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut lines = output.by_ref().lines().map_while(Result::ok);
        let endpoint = lines.find_map(|line| word_after(&line, "is ready at "));
        let ready_after = started.elapsed();
        let ca_file = if options.contains(&"--tls") {
            lines.find_map(|line| word_after(&line, "AWS_CA_BUNDLE=")).map(PathBuf::from)
        } else {
            None
        };
        let output = Some(output);
        if let Some(endpoint) = endpoint {
            return Ok(Self { child, output, endpoint, ca_file, ready_after });
        }
        let _ = child.kill();
        Err("`anabranch local` ended without its ready line".to_owned())
    }

    /// Starts another server on a given free port. It is ready when it accepts a connection.
    pub(crate) fn peer(command: &mut Command, port: u16) -> Result<Self, String> {
        let started = Instant::now();
        let child = spawn(command)?;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if started.elapsed() > Duration::from_secs(30) {
                let name = command.get_program().display();
                return Err(format!("{name} does not answer on port {port}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let endpoint = format!("http://127.0.0.1:{port}");
        let ready_after = started.elapsed();
        Ok(Self { child, output: None, endpoint, ca_file: None, ready_after })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sets the variables with which any AWS SDK uses this server.
    pub(crate) fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "local")
            .env("AWS_SECRET_ACCESS_KEY", "local");
        if let Some(file) = &self.ca_file {
            command.env("AWS_CA_BUNDLE", file).env("NODE_EXTRA_CA_CERTS", file);
        }
        command
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A killed server leaves its temporary folder behind.
        if let Some(folder) = self.ca_file.as_ref().and_then(|file| file.parent()) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Returns the word after `mark` in a line.
fn word_after(line: &str, mark: &str) -> Option<String> {
    let (_, rest) = line.split_once(mark)?;
    rest.split_whitespace().next().map(str::to_owned)
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(|e| e.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|e| e.to_string())
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|e| format!("{} did not start: {e}", command.get_program().display()))
}
