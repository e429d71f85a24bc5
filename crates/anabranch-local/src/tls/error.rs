//! Errors of certificates and their files.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Error of an unusable certificate, key, or file of either.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("cannot {verb} {}: {source}", .file.display())]
    File {
        /// The failed action: `read` or `write`.
        verb: &'static str,
        /// The file that failed.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not contain what it should.
    #[error("cannot use {}: {reason}", .file.display())]
    Unusable {
        /// The unusable file.
        file: PathBuf,
        /// The reason, in words.
        reason: String,
    },
    /// The private key belongs to another certificate.
    #[error(
        "the key in {} does not belong to the certificate in {}",
        .key.display(), .certificate.display()
    )]
    KeyMismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate authority in a folder has expired, or its key does not match its
    /// certificate.
    #[error(
        "cannot use the certificate authority in {} ({reason}): delete ca.pem and ca.key there; \
         the next start creates new ones, which clients must trust again",
        .folder.display()
    )]
    Authority {
        /// The folder with `ca.pem` and `ca.key`.
        folder: PathBuf,
        /// The reason, in words.
        reason: String,
    },
    /// No certificate could be created.
    #[error("cannot create a certificate: {0}")]
    Made(String),
}

impl TlsError {
    pub(super) fn unusable(file: &Path, reason: String) -> Self {
        Self::Unusable { file: file.to_owned(), reason }
    }

    pub(super) fn made(problem: impl Display) -> Self {
        Self::Made(problem.to_string())
    }
}

/// Reads a text file.
pub(super) fn read(file: &Path) -> Result<String, TlsError> {
    let bytes = std::fs::read(file).map_err(|source| TlsError::File {
        verb: "read",
        file: file.to_owned(),
        source,
    })?;
    String::from_utf8(bytes)
        .map_err(|_| TlsError::unusable(file, "it is not a text file, so it is not PEM".to_owned()))
}
