//! Dead letters in a file, one JSON object per line.
//!
//! ```text
//! FILE                 each new dead letter appends a line, under a lock of the file
//! FILE.redrive         input of the running redrive: FILE, renamed under the lock
//! FILE.redrive.done    one line per record that the redrive has done, so that the next redrive
//!                      resumes after one that was killed
//! FILE.redrive.lock    held by the running redrive
//! ```

use super::record::DeadLetter;
use super::redrive::{RedriveKeys, RedriveSummary};
use super::{DeadLetterError, DeadLetterQueue};
use crate::consumer::modes::closure::{Delivery, HandlerError};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

/// A file of dead letters: one JSON object per line, with everything needed to handle the record
/// later. Several processes may share it.
///
/// Lines are appended on tokio's blocking threads. On a disk that hangs, such a call can outlive a
/// stop, which does not wait for it. Dropping the runtime does wait, without a limit. A program
/// that must exit even then calls `Runtime::shutdown_background`, as the `anabranch` command does.
#[derive(Clone, Debug)]
pub struct DeadLetterFile {
    path: PathBuf,
}

/// Input of a redrive, read from the renamed file.
struct RedriveClaim {
    /// True if an earlier redrive left it unfinished.
    stale: bool,
    /// The readable dead letters, in stream order.
    parked: Vec<DeadLetter>,
    /// Lines that cannot be parsed.
    unreadable: Vec<String>,
    /// Ids of the records that the earlier redrive has done, in the format of [`place`].
    done: BTreeSet<String>,
}

impl DeadLetterFile {
    /// Appends dead letters to the file at `path`, which is created by the first one.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned() }
    }

    /// Appends a dead letter. On return it is synced to disk.
    pub(in crate::consumer) async fn store(
        &self,
        parked: &DeadLetter,
    ) -> Result<(), DeadLetterError> {
        let (path, line) = (self.path.clone(), parked.to_line());
        self.blocking(move || append(&path, &line)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, DeadLetterError> {
        let done = spawn_blocking(work).await;
        let done = done.unwrap_or_else(|_| Err(io::Error::other("the write was interrupted")));
        done.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => {
                DeadLetterError::Busy { path: self.path.display().to_string() }
            }
            _ => DeadLetterError::File { path: self.path.display().to_string(), source },
        })
    }

    /// Redrives all dead letters of the file; see [`DeadLetterQueue::redrive`].
    pub(in crate::consumer) async fn redrive<F, T, E>(
        &self,
        handle: F,
    ) -> Result<RedriveSummary, DeadLetterError>
    where
        F: Fn(Delivery) -> T,
        T: Future<Output = Result<(), E>>,
        E: Into<HandlerError>,
    {
        let path = beside(&self.path, ".redrive.lock");
        let _lock = self.blocking(move || only_one(&path)).await?;
        let mut keys = RedriveKeys::default();
        loop {
            let path = self.path.clone();
            let Some(claim) = self.blocking(move || claim(&path)).await? else { break };
            let RedriveClaim { stale, parked, unreadable: mut left, done } = claim;
            keys.begin(left.len());
            for parked in parked {
                let place = place(&parked);
                if done.contains(&place) {
                    continue;
                }
                if keys.handle(&parked, &handle).await {
                    let path = beside(&self.path, ".redrive.done");
                    self.blocking(move || append(&path, &format!("{place}\n"))).await?;
                } else {
                    left.push(parked.to_line());
                }
            }
            let (path, left) = (self.path.clone(), left.concat());
            self.blocking(move || give_back(&path, &left)).await?;
            // Dead letters that arrived since the earlier redrive began are handled after its
            // remaining ones.
            if !stale {
                break;
            }
        }
        Ok(keys.end())
    }
}

impl DeadLetterQueue {
    /// Passes every dead letter to `handle` in stream order, and removes those that were handled.
    ///
    /// If `handle` fails for a record, later dead letters of that key stay too; other keys
    /// continue. After a redrive was killed, the next one resumes where it stopped.
    ///
    /// Only one redrive runs at a time. Another one gets [`DeadLetterError::Busy`] until the first
    /// one or its process ends. Consumers may store new dead letters meanwhile. All dead letters
    /// are held in memory. A stream is not redriven here; see
    /// [`DeadLetterError::RedriveByConsumer`].
    pub async fn redrive<F, T, E>(&self, handle: F) -> Result<RedriveSummary, DeadLetterError>
    where
        F: Fn(Delivery) -> T,
        T: Future<Output = Result<(), E>>,
        E: Into<HandlerError>,
    {
        match self {
            Self::File(file) => file.redrive(handle).await,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::Table(table) => Box::pin(table.redrive(handle)).await,
            Self::Stream(stream) => Err(DeadLetterError::RedriveByConsumer(stream.clone())),
        }
    }
}

/// Appends complete lines and syncs them to disk, together with the name of the file.
fn append(path: &Path, lines: &str) -> io::Result<()> {
    loop {
        let mut file = OpenOptions::new().read(true).create(true).append(true).open(path)?;
        file.lock()?;
        // A redrive may have renamed the file while this call waited for the lock.
        if !is_still_at(&file, path)? {
            continue;
        }
        let mut text = String::new();
        if ends_inside_a_line(&mut file)? {
            // A line that a crash cut off must not swallow the next record.
            text.push('\n');
        }
        text.push_str(lines);
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        // Not only for a new file: the process that created it may have died before this step.
        return sync_folder(path);
    }
}

/// Syncs the names in the folder of the file at `path`, so that a created or renamed file survives
/// a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    // Windows cannot open folders as files, and does not need to sync names.
    if cfg!(windows) { Ok(()) } else { File::open(folder_of(path))?.sync_all() }
}

/// Returns the folder of the file at `path`. A bare file name is in the current folder.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn ends_inside_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let now = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        now => now?,
    };
    let ours = file.metadata()?;
    Ok((ours.dev(), ours.ino()) == (now.dev(), now.ino()))
}

/// On other platforms an open file cannot be renamed.
#[cfg(not(unix))]
fn is_still_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

pub(in crate::consumer) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the id of a record in the list of done records.
fn place(parked: &DeadLetter) -> String {
    let (shard, record) = (&parked.shard, &parked.record);
    format!("{} {} {} {}", shard.stream, shard.shard, record.sequence, record.sub)
}

/// Takes the lock file of a redrive. Fails with `WouldBlock` if another redrive holds it.
pub(in crate::consumer) fn only_one(path: &Path) -> io::Result<File> {
    let lock = OpenOptions::new().create(true).append(true).open(path)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Claims the file for a redrive by renaming it. Returns `None` if there is nothing to redrive.
fn claim(path: &Path) -> io::Result<Option<RedriveClaim>> {
    let (claimed, done_list) = (beside(path, ".redrive"), beside(path, ".redrive.done"));
    let stale = claimed.exists();
    if !stale {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        // Appenders hold this lock. The next appender notices that the file was renamed.
        file.lock()?;
        // A redrive that was killed at its very end leaves its list of done records behind. The
        // listed records may have been stored again since, and must be handled again.
        remove_if_there(&done_list)?;
        std::fs::rename(path, &claimed)?;
        sync_folder(path)?;
    }
    let text = std::fs::read(&claimed)?;
    // Without the list, the redrive would handle done records again. A line that a crash cut off
    // only affects its own record.
    let done = match std::fs::read(&done_list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        done => done?,
    };
    let (mut parked, mut unreadable) = (Vec::new(), Vec::new());
    for line in String::from_utf8_lossy(&text).lines().filter(|line| !line.is_empty()) {
        match DeadLetter::from_line(line) {
            Ok(record) => parked.push(record),
            Err(_) => unreadable.push(format!("{line}\n")),
        }
    }
    // Sequence numbers of a child shard are above those of its parents, so this order is correct
    // for each key.
    let order = |p: &DeadLetter| (p.shard.stream.clone(), p.record.sequence, p.record.sub);
    parked.sort_by_key(order);
    parked.dedup_by_key(|parked| order(&*parked));
    let done = String::from_utf8_lossy(&done).lines().map(str::to_owned).collect();
    Ok(Some(RedriveClaim { stale, parked, unreadable, done }))
}

/// Appends the remaining lines to the file and ends the claim. The lines are appended before the
/// claim is removed, so a crash in between duplicates a record but never loses it.
fn give_back(path: &Path, left: &str) -> io::Result<()> {
    if !left.is_empty() {
        append(path, left)?;
    }
    std::fs::remove_file(beside(path, ".redrive"))?;
    // Without its list of done records, a claim that a power cut brings back would be handled again.
    sync_folder(path)?;
    remove_if_there(&beside(path, ".redrive.done"))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
