//! TLS of `anabranch local`: its options, and the certificate file for clients.

use crate::failure::CommandFailure;
use anabranch_local::Tls;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Name prefix of temporary folders.
const FOLDER_PREFIX: &str = "anabranch-local-";
/// A file in a temporary folder that the process keeps locked while it runs.
const LOCK_FILE: &str = "running";
/// Age at which a folder without a lock counts as abandoned: a new folder is locked at once.
const LEFT_BEHIND: Duration = Duration::from_mins(1);

/// Folder of the certificate authority in the data folder.
const DATA_SUBFOLDER: &str = "tls";

/// TLS options.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TlsOptions {
    /// Also listen with TLS on a second port, with HTTP/2 and HTTP/1.1 by ALPN
    #[arg(long)]
    tls: bool,
    /// Port for TLS; 0 selects a free one. Default: the one after --port, or a free one with
    /// --port 0
    #[arg(long, value_name = "PORT", requires = "tls")]
    tls_port: Option<u16>,
    /// Certificate chain in PEM; without it, a certificate authority is created at startup, and
    /// kept with --data
    #[arg(long, value_name = "FILE", requires_all = ["key", "tls"])]
    cert: Option<PathBuf>,
    /// Private key of --cert, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["cert", "tls"])]
    key: Option<PathBuf>,
}

impl TlsOptions {
    /// Returns the TLS port for the given plain port.
    pub(super) fn port_beside(&self, plain: u16) -> u16 {
        let next = if plain == 0 { 0 } else { plain.wrapping_add(1) };
        self.tls_port.unwrap_or(next)
    }

    /// Returns the certificate, or `None` without TLS.
    pub(super) fn certificate(&self, data: Option<&Path>) -> Result<Option<Tls>, CommandFailure> {
        if !self.tls {
            return Ok(None);
        }
        let tls = match (&self.cert, &self.key, data) {
            (Some(cert), Some(key), _) => Tls::from_pem_files(cert, key).map_err(|problem| {
                CommandFailure::usage(format!(
                    "{problem}; give a certificate and its key in PEM, or omit --cert and --key to \
                     have them generated"
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
    /// Removed on drop.
    _temporary: Option<TempDir>,
    /// Lock in the temporary folder.
    _lock: Option<File>,
}

impl CaFile {
    /// Returns the existing file, or writes a temporary one.
    pub(super) fn of(
        options: &TlsOptions,
        data: Option<&Path>,
        pem: &str,
    ) -> Result<Self, CommandFailure> {
        let kept = match (&options.cert, data) {
            (Some(cert), _) => Some(cert.clone()),
            (None, Some(data)) => Some(data.join(DATA_SUBFOLDER).join("ca.pem")),
            (None, None) => None,
        };
        let named = match kept {
            // Absolute, because the exports may be used in other folders.
            Some(path) => {
                std::path::absolute(path).map(|path| Self { path, _temporary: None, _lock: None })
            }
            None => Self::temporary(pem),
        };
        named.map_err(|error| {
            CommandFailure::usage(format!(
                "cannot write the certificate for clients in {}: {error}; choose another folder \
                 with TMPDIR, or keep it with --data",
                std::env::temp_dir().display()
            ))
        })
    }

    fn temporary(pem: &str) -> std::io::Result<Self> {
        remove_left_behind(&std::env::temp_dir());
        let mut folder = tempfile::Builder::new();
        folder.prefix(FOLDER_PREFIX);
        // Clients of other users and in containers read it too. It is not secret.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            folder.permissions(std::fs::Permissions::from_mode(0o755));
        }
        let folder = folder.tempdir()?;
        let lock = File::create(folder.path().join(LOCK_FILE))?;
        lock.lock()?;
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, pem)?;
        Ok(Self { path, _temporary: Some(folder), _lock: Some(lock) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes temporary folders of local streams that were killed. Folders that can't be read or
/// removed are left: another user may own them.
fn remove_left_behind(temporary: &Path) {
    let Ok(entries) = std::fs::read_dir(temporary) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX) {
            continue;
        }
        let age = entry.metadata().and_then(|data| data.modified()).map(|at| at.elapsed());
        let is_old = matches!(age, Ok(Ok(age)) if age >= LEFT_BEHIND);
        let lock = File::open(entry.path().join(LOCK_FILE));
        if is_old && lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_processes_are_removed_and_no_others() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = |name: &str, locked: bool, age: Duration| {
            let path = temporary.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let lock = File::create(path.join(LOCK_FILE)).unwrap();
            if locked {
                lock.lock().unwrap();
            }
            let made = File::open(&path).unwrap();
            let now = made.metadata().unwrap().modified().unwrap();
            made.set_modified(now - age).unwrap();
            (path, lock)
        };
        let hour = Duration::from_hours(1);
        let (killed, lock) = folder("anabranch-local-killed", false, hour);
        drop(lock);
        let (running, _lock) = folder("anabranch-local-running", true, hour);
        let (new, lock) = folder("anabranch-local-new", false, Duration::ZERO);
        drop(lock);
        let (other, lock) = folder("something-else", false, hour);
        drop(lock);
        remove_left_behind(temporary.path());
        let left = [killed, running, new, other].map(|path| path.exists());
        assert_eq!(left, [false, true, true, true]);
    }

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
