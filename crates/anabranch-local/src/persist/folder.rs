//! The journal's folder: the names of its files, and the lock that keeps a second server out.

use super::error::OpenError;
use super::frame::{self, Kind};
use super::header::{FILE_HEADER_BYTES, FileHeader};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The folder of one journal, locked for the lifetime of this value.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Kept open for its lock, which the system releases when the process ends, however it ends.
    lock: File,
}

/// Number of attempts to take the lock, and the milliseconds between them. A server that was just
/// killed may not have exited yet.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE_MS: u64 = 20;

impl Drop for Folder {
    fn drop(&mut self) {
        // Closing the file does not release the lock while a newly forked child process still has
        // it open.
        let _ = self.lock.unlock();
    }
}

impl Folder {
    /// Creates the folder if necessary and locks it.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |verb, source| OpenError::Io { verb, path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(|source| io("create the folder", source))?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
            .map_err(|source| io("write to the folder", source))?;
        for _ in 0..LOCK_TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), lock }),
                Err(TryLockError::Error(source)) => return Err(io("lock the folder", source)),
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(Duration::from_millis(LOCK_PAUSE_MS));
                }
            }
        }
        Err(OpenError::InUse { folder: path.to_owned() })
    }

    /// Returns the path of the journal file with this number.
    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.path.join(format!("journal-{number:010}.log"))
    }

    /// Returns the path under which a file is built before it gets its name. Leftovers of a crash
    /// are overwritten.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.path.join("journal.new")
    }

    /// Returns the numbers of the existing journal files, ascending.
    pub(super) fn numbers(&self) -> Result<Vec<u64>, OpenError> {
        let io = |source| OpenError::Io { verb: "list", path: self.path.clone(), source };
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            let number = name.to_str().and_then(|name| {
                name.strip_prefix("journal-")?.strip_suffix(".log")?.parse::<u64>().ok()
            });
            // Another spelling of a number, such as `journal-1.log`, is not a file of the journal.
            numbers.extend(number.filter(|n| self.file(*n).file_name() == Some(&name)));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Creates a journal file from a header and a snapshot: either complete and on disk, or not at
    /// all. Returns the file, ready for appending, and its length.
    ///
    /// The file is built under another name, because a half-written snapshot would be
    /// indistinguishable from damage.
    pub(super) fn create(&self, header: FileHeader, snapshot: &[u8]) -> io::Result<(File, u64)> {
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        frame::write(&mut bytes, header.salt, header.first, Kind::Snapshot, |out| {
            out.extend_from_slice(snapshot);
        })
        .ok_or(io::ErrorKind::FileTooLarge)?;
        let unfinished = self.unfinished();
        let made = (|| {
            let mut file = File::create(&unfinished)?;
            file.write_all(&bytes)?;
            file.sync_data()?;
            fs::rename(&unfinished, self.file(header.file))?;
            self.sync()?;
            Ok(file)
        })();
        if made.is_err() {
            // Neither name may stay, because the old file continues with the numbers of the new
            // one.
            let _ = fs::remove_file(&unfinished);
            let _ = fs::remove_file(self.file(header.file));
        }
        made.map(|file| (file, bytes.len() as u64))
    }

    /// Returns the header of a journal file, if it is readable.
    pub(super) fn header(&self, number: u64) -> Option<FileHeader> {
        let mut bytes = [0; FILE_HEADER_BYTES];
        File::open(self.file(number)).ok()?.read_exact(&mut bytes).ok()?;
        FileHeader::read(&bytes).ok()
    }

    /// Deletes the journal file with this number.
    pub(super) fn remove(&self, number: u64) -> io::Result<()> {
        fs::remove_file(self.file(number))
    }

    /// Syncs the names in the folder, so that created and removed files survive a power cut.
    pub(super) fn sync(&self) -> io::Result<()> {
        // Windows cannot open folders as files, and does not need to sync names.
        if cfg!(windows) { Ok(()) } else { File::open(&self.path)?.sync_all() }
    }
}
