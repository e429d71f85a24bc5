//! TLS of `anabranch local`: its options, and the file that clients trust.

use crate::failure::Failure;
use anabranch_local::Tls;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The folder of the certificate authority inside the data folder.
const DATA_SUBFOLDER: &str = "tls";

/// The options of TLS.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TlsOptions {
    /// Listen with TLS as well, on a second port, with HTTP/2 and HTTP/1.1 by ALPN
    #[arg(long)]
    tls: bool,
    /// Port to listen on with TLS; 0 takes a free one. Default: the one after --port, or a free one
    /// with --port 0
    #[arg(long, value_name = "PORT", requires = "tls")]
    tls_port: Option<u16>,
    /// Certificate chain to show, in PEM; without it, a certificate authority is made at start and
    /// kept with --data
    #[arg(long, value_name = "FILE", requires_all = ["key", "tls"])]
    cert: Option<PathBuf>,
    /// Private key of --cert, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["cert", "tls"])]
    key: Option<PathBuf>,
}

impl TlsOptions {
    /// The port for TLS beside this port without.
    pub(super) fn port_beside(&self, plain: u16) -> u16 {
        let next = if plain == 0 { 0 } else { plain.wrapping_add(1) };
        self.tls_port.unwrap_or(next)
    }

    /// The certificate to listen with; `None` without TLS.
    pub(super) fn certificate(&self, data: Option<&Path>) -> Result<Option<Tls>, Failure> {
        if !self.tls {
            return Ok(None);
        }
        let tls = match (&self.cert, &self.key, data) {
            (Some(cert), Some(key), _) => Tls::from_pem_files(cert, key).map_err(|problem| {
                Failure::usage(format!(
                    "{problem}; give a certificate and its key in PEM, or leave --cert and --key \
                     out to have them made"
                ))
            })?,
            (_, _, Some(data)) => Tls::kept_in(data.join(DATA_SUBFOLDER)),
            _ => Tls::generated(),
        };
        Ok(Some(tls))
    }
}

/// The file with the certificate that clients trust.
#[derive(Debug)]
pub(super) struct CaFile {
    path: PathBuf,
    /// Removed when this is dropped.
    _temporary: Option<TempDir>,
}

impl CaFile {
    /// Finds the file, or writes a temporary one.
    pub(super) fn of(
        options: &TlsOptions,
        data: Option<&Path>,
        pem: &str,
    ) -> Result<Self, Failure> {
        let kept = match (&options.cert, data) {
            (Some(cert), _) => Some(cert.clone()),
            (None, Some(data)) => Some(data.join(DATA_SUBFOLDER).join("ca.pem")),
            (None, None) => None,
        };
        let named = match kept {
            // Absolute, because the exports are for other folders too.
            Some(path) => std::path::absolute(path).map(|path| Self { path, _temporary: None }),
            None => Self::temporary(pem),
        };
        named.map_err(|error| {
            Failure::usage(format!(
                "cannot write the certificate for clients in {}: {error}; choose another folder \
                 with TMPDIR, or keep it with --data",
                std::env::temp_dir().display()
            ))
        })
    }

    fn temporary(pem: &str) -> std::io::Result<Self> {
        let mut folder = tempfile::Builder::new();
        folder.prefix("anabranch-local-");
        // Clients under other users and in containers read it too. It is not secret.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            folder.permissions(std::fs::Permissions::from_mode(0o755));
        }
        let folder = folder.tempdir()?;
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, pem)?;
        Ok(Self { path, _temporary: Some(folder) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_for_tls_follows_the_one_without() {
        for (chosen, plain, expected) in [
            (None, 4567, 4568),
            (None, 0, 0),
            (None, u16::MAX, 0),
            (Some(7), 4567, 7),
            (Some(0), 4567, 0),
        ] {
            let options = TlsOptions { tls: true, tls_port: chosen, cert: None, key: None };
            assert_eq!(options.port_beside(plain), expected, "{chosen:?} {plain}");
        }
    }
}
