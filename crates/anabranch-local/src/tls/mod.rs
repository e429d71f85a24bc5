//! TLS of the local stream: the server's certificate, and the one that clients trust.
//!
//! ```text
//! Tls ─ generated ──→ Authority::new      ─ issue(host) ─┐
//!     ├ kept in DIR → Authority::kept_in  ─ issue(host) ─┼→ ServerTls (rustls config, CA as PEM)
//!     └ PEM files ───────────────────────────────────────┘
//! ```

mod authority;
mod error;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use self::authority::Authority;
pub use self::error::TlsError;

/// Protocols that the server offers by ALPN, in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The source of the certificate of a local stream with TLS.
#[derive(Debug)]
pub struct Tls(CertificateSource);

#[derive(Debug)]
enum CertificateSource {
    Generated,
    KeptIn(PathBuf),
    Files(CertificateIdentity),
}

/// A certificate chain with its key, and the certificate that clients trust.
#[derive(Debug)]
struct CertificateIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    ca_pem: String,
}

/// TLS configuration of a server.
#[derive(Debug, Clone)]
pub(crate) struct ServerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// The certificate that clients trust.
    pub(crate) ca_pem: String,
}

impl Tls {
    /// Creates a certificate authority at each start. It signs a certificate for `localhost`,
    /// `host.docker.internal`, 127.0.0.1, `::1` and the address that the server listens on.
    pub fn generated() -> Self {
        Self(CertificateSource::Generated)
    }

    /// Keeps the certificate authority in a folder, as `ca.pem` and `ca.key`, so that clients still
    /// trust it after a restart. The server's certificate is created at each start, as by
    /// [`Tls::generated`].
    pub fn kept_in(folder: impl Into<PathBuf>) -> Self {
        Self(CertificateSource::KeptIn(folder.into()))
    }

    /// Reads a certificate chain and its private key from PEM files. The server's own certificate
    /// must come first.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.as_ref(), key.as_ref());
        let ca_pem = error::read(certificate)?;
        let unusable = |file: &Path, reason: String| TlsError::unusable(file, reason);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(ca_pem.as_bytes()).collect();
        let chain = chain.map_err(|problem| unusable(certificate, problem.to_string()))?;
        if chain.is_empty() {
            return Err(unusable(certificate, "it contains no certificate in PEM".to_owned()));
        }
        let private = PrivateKeyDer::from_pem_slice(error::read(key)?.as_bytes());
        let private = private.map_err(|problem| match problem {
            pem::Error::NoItemsFound => {
                unusable(key, "it contains no unencrypted private key in PEM".to_owned())
            }
            problem => unusable(key, problem.to_string()),
        })?;
        let identity = CertificateIdentity { chain, key: private, ca_pem };
        // Builds the configuration once, so that the error for a mismatched pair can name both
        // files.
        identity.server_tls().map_err(|problem| match problem {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::KeyMismatch { certificate: certificate.to_owned(), key: key.to_owned() }
            }
            problem => unusable(certificate, problem.to_string()),
        })?;
        Ok(Self(CertificateSource::Files(identity)))
    }

    /// Returns the TLS configuration for a server that listens on `host`.
    pub(crate) fn server(&self, host: IpAddr) -> Result<ServerTls, TlsError> {
        let made = |authority: Authority| -> Result<ServerTls, TlsError> {
            authority.issue(host)?.server_tls().map_err(TlsError::made)
        };
        match &self.0 {
            CertificateSource::Generated => made(Authority::new()?),
            CertificateSource::KeptIn(folder) => made(Authority::kept_in(folder)?),
            CertificateSource::Files(identity) => identity.server_tls().map_err(TlsError::made),
        }
    }
}

impl CertificateIdentity {
    fn server_tls(&self) -> Result<ServerTls, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
        Ok(ServerTls { config: Arc::new(config), ca_pem: self.ca_pem.clone() })
    }
}

/// Returns the cryptography provider. It is named explicitly because a process may link more than
/// one, and then has no default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
