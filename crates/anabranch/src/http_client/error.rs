//! Errors of setting up the client, of connecting, and of calls.

use aws_smithy_runtime_api::client::result::ConnectorError;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// The environment or the caller asks for a setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpSetupError {
    /// The file of certificate authorities cannot be used.
    #[error(
        "cannot use {} from AWS_CA_BUNDLE: {reason}; set it to a readable PEM file with \
         certificates, or unset it to trust the system's certificate authorities",
        path.display()
    )]
    CaBundle {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The certificate authorities given by the caller cannot be used.
    #[error("cannot use the given certificate authorities: {reason}")]
    Certificates {
        /// Description of the problem.
        reason: String,
    },
    /// The address of a proxy cannot be used.
    #[error(
        "{variable} is not the address of an HTTP proxy ({reason}): use http://HOST:PORT or \
         https://HOST:PORT, or unset it"
    )]
    Proxy {
        /// The environment variable. Its value may contain a password, so it is not shown.
        variable: &'static str,
        /// Description of the problem.
        reason: &'static str,
    },
}

/// A connection could not be made. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The client could not be set up from the environment.
    #[error("{0}")]
    Setup(String),
    /// The request's address has no host, or a scheme other than `http` and `https`.
    #[error("{uri} is not an http:// or https:// address")]
    Address {
        /// The address of the request.
        uri: String,
    },
    /// The name is unknown, or the TCP connection was refused or failed.
    #[error("cannot connect to {target}")]
    Tcp {
        /// Host and port of the service or the proxy.
        target: String,
        /// The underlying error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The proxy did not open a tunnel.
    #[error("proxy {proxy} did not open a connection to {target}: {reason}")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
        /// Host and port of the service.
        target: String,
        /// The proxy's answer, or the error.
        reason: String,
    },
    /// The TLS handshake failed.
    #[error("the TLS handshake with {target} failed{}", certificate_advice(.source))]
    Tls {
        /// Host and port of the service or the proxy.
        target: String,
        /// The underlying error.
        source: std::io::Error,
    },
    /// The system has no certificate authorities.
    #[error(
        "no certificate authorities were found: install the package ca-certificates, or set \
         AWS_CA_BUNDLE to a PEM file"
    )]
    NoAuthorities,
    /// The HTTP handshake failed.
    #[error("the HTTP handshake with {target} failed")]
    Handshake {
        /// Host and port of the service.
        target: String,
        /// The underlying error.
        source: hyper::Error,
    },
    /// The connection took longer than the time-out.
    #[error("no connection to {target} within {} ms", timeout.as_millis())]
    TimedOut {
        /// Host and port of the service.
        target: String,
        /// The time-out that expired.
        timeout: Duration,
    },
}

fn certificate_advice(error: &std::io::Error) -> &'static str {
    let below = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match below {
        Some(rustls::Error::InvalidCertificate(_)) => {
            " (if it uses a private certificate authority, set AWS_CA_BUNDLE to the authority's \
             PEM file)"
        }
        _ => "",
    }
}

/// Reason why a call failed before its reply began.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A connection could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server refused the HTTP/2 stream, and did not process the request.
    #[error("the server refused the HTTP/2 stream")]
    Refused(#[source] hyper::Error),
    /// The connection broke. The request may have been applied.
    #[error("the connection broke")]
    Lost(#[source] hyper::Error),
    /// The connection was closed before it accepted the request.
    #[error("the server closed the connection before it accepted the request")]
    NotTaken,
    /// The connection was closed without an answer. The request may have been applied.
    #[error("the server closed the connection without a reply")]
    Closed,
    /// The connection showed no sign of life. The request may have been applied.
    #[error("the connection was silent for {} s", super::SILENCE_TIMEOUT.as_secs())]
    Silent,
    /// The reply did not begin in time. The request may have been applied.
    #[error("no reply within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

impl CallError {
    /// Returns true if the request certainly had no effect.
    pub fn is_not_applied(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Refused(_) | Self::NotTaken)
    }

    /// Classifies the error of a request that was passed to a connection.
    pub(super) fn of_sent(error: hyper::Error) -> Self {
        if is_refused_stream(&error) { Self::Refused(error) } else { Self::Lost(error) }
    }

    pub(super) fn into_connector_error(self) -> ConnectorError {
        match self {
            Self::TimedOut(_) | Self::Connect(ConnectError::TimedOut { .. }) => {
                ConnectorError::timeout(self.into())
            }
            Self::Connect(ConnectError::Address { .. }) => ConnectorError::user(self.into()),
            _ => ConnectorError::io(self.into()),
        }
    }
}

/// Returns true if an error proves that the server did not process the stream (RFC 9113, section
/// 8.7).
///
/// A GOAWAY from the server ends only the streams above its last stream id with an error of its
/// own. Other streams continue, and end with an I/O error if the connection closes before they are
/// answered.
fn is_refused_stream(error: &hyper::Error) -> bool {
    let mut below: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = below {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            let is_refused = h2.reason() == Some(h2::Reason::REFUSED_STREAM);
            return h2.is_remote() && (h2.is_go_away() || is_refused);
        }
        below = error.source();
    }
    false
}
