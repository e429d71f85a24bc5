//! Trusted certificate authorities, and the TLS settings built from them.

use super::error::{ConnectError, HttpSetupError};
use rustls::client::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{RootCertStore, crypto};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Source of the trusted authorities. Builds the TLS settings of all connections.
pub(super) struct Trust {
    /// Certificates of the configured bundle. If `None`, the system's are read when the first TLS
    /// connection is made, because plain HTTP needs none.
    bundle: Option<Vec<CertificateDer<'static>>>,
    settings: OnceLock<Option<TlsSettings>>,
}

/// TLS settings for connections to a service and to a proxy.
pub(super) struct TlsSettings {
    /// Offers HTTP/2 and HTTP/1.1 by ALPN.
    pub(super) service: Arc<ClientConfig>,
    /// Offers no ALPN protocol, because proxies are asked with HTTP/1.1.
    pub(super) proxy: Arc<ClientConfig>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.bundle.is_some() { "bundle" } else { "system" };
        f.debug_tuple("Trust").field(&kind).finish()
    }
}

impl Trust {
    /// Trusts the system's authorities. `SSL_CERT_FILE` and `SSL_CERT_DIR` override them.
    pub(super) fn system() -> Self {
        Self { bundle: None, settings: OnceLock::new() }
    }

    /// Trusts only the authorities in a PEM file.
    pub(super) fn bundle(path: &Path) -> Result<Self, HttpSetupError> {
        let failed = |reason: String| HttpSetupError::CaBundle { path: path.to_owned(), reason };
        let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        Self::read(&pem).map_err(failed)
    }

    /// Trusts only the authorities in a PEM text.
    pub(super) fn pem(pem: &[u8]) -> Result<Self, HttpSetupError> {
        Self::read(pem).map_err(|reason| HttpSetupError::Certificates { reason })
    }

    fn read(pem: &[u8]) -> Result<Self, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = read.map_err(|error| error.to_string())?;
        if certificates.is_empty() {
            return Err("it holds no certificate".to_owned());
        }
        if roots(&certificates).is_empty() {
            return Err("none of its certificates can be parsed".to_owned());
        }
        Ok(Self { bundle: Some(certificates), settings: OnceLock::new() })
    }

    /// Returns the TLS settings, which are built once.
    pub(super) fn settings(&self) -> Result<&TlsSettings, ConnectError> {
        let settings = self.settings.get_or_init(|| {
            let roots = match &self.bundle {
                Some(bundle) => roots(bundle),
                None => roots(&rustls_native_certs::load_native_certs().certs),
            };
            (!roots.is_empty()).then(|| TlsSettings::new(roots))
        });
        settings.as_ref().ok_or(ConnectError::NoAuthorities)
    }
}

/// Collects the certificates that can be parsed, because a system's list may hold invalid ones.
fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    roots
}

impl TlsSettings {
    fn new(roots: RootCertStore) -> Self {
        let provider = Arc::new(crypto::ring::default_provider());
        let proxy = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut service = proxy.clone();
        service.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { service: Arc::new(service), proxy: Arc::new(proxy) }
    }
}
