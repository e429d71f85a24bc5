//! Problems with certificates and their files.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// A certificate, a key or one of their files that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read or written.
    #[error("cannot {verb} {}: {source}", .file.display())]
    File {
        /// The failed action: `read` or `write`.
        verb: &'static str,
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("cannot use {}: {reason}", .file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The private key belongs to another certificate.
    #[error("the key in {} does not belong to the certificate in {}", .key.display(), .certificate.display())]
    KeyMismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate authority of a folder has expired, or its key belongs to another one.
    #[error(
        "the certificate authority in {} cannot be used ({reason}): remove ca.pem and ca.key there, \
         and the next start makes new ones, which clients have to trust again",
        .folder.display()
    )]
    Authority {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        reason: String,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
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

/// Reads a file of text.
pub(super) fn read(file: &Path) -> Result<String, TlsError> {
    let bytes = std::fs::read(file).map_err(|source| TlsError::File {
        verb: "read",
        file: file.to_owned(),
        source,
    })?;
    String::from_utf8(bytes)
        .map_err(|_| TlsError::unusable(file, "it is not text, so it is not PEM".to_owned()))
}
