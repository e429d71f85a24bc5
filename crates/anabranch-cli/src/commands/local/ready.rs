//! Ready line and the environment variables to export.

use crate::shell_word::shell_word;
use anabranch_local::Local;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;

/// Environment variables that set a proxy.
const PROXIES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// Prints the ready line and the exports, and flushes standard output.
///
/// A script may read the first line and close the pipe, which is not an error.
pub(super) fn print(local: &Local, region: &str, ca_file: Option<&Path>) -> io::Result<()> {
    let text = text(local, region, ca_file);
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

fn text(local: &Local, region: &str, ca_file: Option<&Path>) -> String {
    let plain = local.endpoint();
    let endpoint = local.tls_endpoint().unwrap_or_else(|| plain.clone());
    let mut text = format!(
        "anabranch local is ready at {endpoint}\n\
         export AWS_ENDPOINT_URL={endpoint}\n\
         export AWS_REGION={region} AWS_DEFAULT_REGION={region}\n\
         export AWS_ACCESS_KEY_ID=local\n\
         export AWS_SECRET_ACCESS_KEY=local\n"
    );
    if let Some(file) = ca_file {
        let file = shell_word(file.display());
        let _ = write!(
            text,
            "export AWS_CA_BUNDLE={file} NODE_EXTRA_CA_CERTS={file}\n\
             # The same without TLS: {plain}\n"
        );
    }
    let listening = local.tls_address().unwrap_or(local.address());
    if PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        // Otherwise a proxy of the environment would receive the requests.
        text += "export NO_PROXY=\"127.0.0.1,localhost,$NO_PROXY\"\n";
    }
    text + &everywhere(listening)
}

/// Returns a note if the server listens on every address: the exports name only the loopback one.
fn everywhere(listening: SocketAddr) -> String {
    if !listening.ip().is_unspecified() {
        return String::new();
    }
    let port = listening.port();
    format!(
        "# It listens on every address ({listening}): other machines and containers use this \
         machine's name or address instead of the one above, with port {port}.\n"
    )
}
