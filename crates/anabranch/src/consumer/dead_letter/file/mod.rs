//! Records that were put aside in a file, one JSON object a line.
//!
//! ```text
//! FILE                 every park appends a line, under a lock of the file
//! FILE.redrive         what a redrive works on: FILE, renamed under the lock
//! FILE.redrive.done    one line for each record of it that is done, so that a redrive that was
//!                      killed goes on where it was
//! FILE.redrive.lock    held by the one redrive that runs
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

/// A file of records that were put aside: one JSON object a line, with everything that is needed
/// to handle the record later. Several processes may share it.
///
/// Lines are appended on tokio's threads for blocking calls. On a disk that hangs such a call can
/// outlive a stop, which does not wait for it; dropping the runtime does, without an end. A program
/// that must end then too calls `Runtime::shutdown_background`, as the `anabranch` command does.
#[derive(Clone, Debug)]
pub struct DeadLetterFile {
    /// Its path.
    path: PathBuf,
}

/// What a redrive works on.
struct RedriveClaim {
    /// Whether an earlier redrive had left it.
    stale: bool,
    /// Its readable records, in the order of the stream.
    parked: Vec<DeadLetter>,
    /// Lines that can't be read.
    unreadable: Vec<String>,
    /// What an earlier redrive has done of it.
    done: BTreeSet<String>,
}

impl DeadLetterFile {
    /// Records go to the end of the file at `path`, which is made when the first one comes.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned() }
    }

    /// Puts a record aside. When it returns, the record is on the disk.
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
        let done = done.unwrap_or_else(|_| Err(io::Error::other("the write was given up")));
        done.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => {
                DeadLetterError::Busy { path: self.path.display().to_string() }
            }
            _ => DeadLetterError::File { path: self.path.display().to_string(), source },
        })
    }

    /// Gives every parked record to `handle`, see [`DeadLetterQueue::redrive`].
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
            // What was parked since an earlier redrive began comes behind what that one had left.
            if !stale {
                break;
            }
        }
        Ok(keys.end())
    }
}

impl DeadLetterQueue {
    /// Gives every parked record to `handle`, in the order of the stream, and removes those that it
    /// has done. When it fails for a record, later records of that key stay parked too; other keys
    /// go on. Killed in between, the next redrive goes on where this one was.
    ///
    /// Only one redrive runs at a time: another gets [`DeadLetterError::Busy`], until this one or its
    /// process ends. Consumers may park on meanwhile. All parked records of a file are held in memory.
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

/// Appends whole lines, and has them on the disk.
fn append(path: &Path, lines: &str) -> io::Result<()> {
    loop {
        let mut file = OpenOptions::new().read(true).create(true).append(true).open(path)?;
        file.lock()?;
        // A redrive may have renamed it while we waited for the lock.
        if !is_still_at(&file, path)? {
            continue;
        }
        let mut text = String::new();
        if ends_inside_a_line(&mut file)? {
            // What a crash cut off must not swallow the next record.
            text.push('\n');
        }
        text.push_str(lines);
        file.write_all(text.as_bytes())?;
        return file.sync_data();
    }
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

/// Elsewhere an open file can't be renamed.
#[cfg(not(unix))]
fn is_still_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

pub(in crate::consumer) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A record's place, as the file of those that are done names it.
fn place(parked: &DeadLetter) -> String {
    let (shard, record) = (&parked.shard, &parked.record);
    format!("{} {} {} {}", shard.stream, shard.shard, record.sequence, record.sub)
}

/// The lock of the one redrive that runs. `WouldBlock` if another process has it.
pub(in crate::consumer) fn only_one(path: &Path) -> io::Result<File> {
    let lock = OpenOptions::new().create(true).append(true).open(path)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes what there is to redrive; nothing if there is nothing.
fn claim(path: &Path) -> io::Result<Option<RedriveClaim>> {
    let (claimed, done_list) = (beside(path, ".redrive"), beside(path, ".redrive.done"));
    let stale = claimed.exists();
    if !stale {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        // Whoever appends has the lock; the next one finds that the file has moved.
        file.lock()?;
        // A redrive that was killed at its very end leaves its list. What it names may have been
        // parked again since, and is to be handled again.
        remove_if_there(&done_list)?;
        std::fs::rename(path, &claimed)?;
    }
    let text = std::fs::read(&claimed)?;
    let done = std::fs::read_to_string(&done_list).unwrap_or_default();
    let (mut parked, mut unreadable) = (Vec::new(), Vec::new());
    for line in String::from_utf8_lossy(&text).lines().filter(|line| !line.is_empty()) {
        match DeadLetter::from_line(line) {
            Ok(record) => parked.push(record),
            Err(_) => unreadable.push(format!("{line}\n")),
        }
    }
    // The numbers of a child shard are above those of its parents, so this is each key's order.
    let order = |p: &DeadLetter| (p.shard.stream.clone(), p.record.sequence, p.record.sub);
    parked.sort_by_key(order);
    parked.dedup_by_key(|parked| order(&*parked));
    let done = done.lines().map(str::to_owned).collect();
    Ok(Some(RedriveClaim { stale, parked, unreadable, done }))
}

/// Puts what is left back, and ends the claim. The lines go back before the claim goes: a crash in
/// between leaves a record twice, never nowhere.
fn give_back(path: &Path, left: &str) -> io::Result<()> {
    if !left.is_empty() {
        append(path, left)?;
    }
    std::fs::remove_file(beside(path, ".redrive"))?;
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
