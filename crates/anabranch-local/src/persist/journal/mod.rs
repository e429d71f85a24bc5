//! The journal: entries are appended with one write each, and replayed when it is opened.
//!
//! ```text
//!  append(fill) ─→ frame ─→ write(2) ─→ newest file ─→ full? ─→ rotate(snapshot) ─→ next file
//!                                            │
//!  durable(number) ─→ Syncer thread ─→ fdatasync
//! ```

#[cfg(test)]
pub(super) mod tests;
use super::compact;
use super::error::{AppendError, OpenError, SyncError};
use super::folder::Folder;
use super::frame::{self, Kind};
use super::header::FileHeader;
use super::replay::{self, Apply, CutTail, JournalEnd};
use super::sync::{Fsync, SyncTarget, Syncer};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Options of a journal.
#[derive(Debug, Clone, Copy)]
pub struct JournalOptions {
    /// Policy for syncing entries to stable storage. Default: every 1,000 ms.
    pub fsync: Fsync,
    /// Size in bytes at which a file is full and the next one begins. Default:
    /// [`DEFAULT_FILE_BYTES`].
    pub file_bytes: u64,
    /// Called with the reason when the journal cannot be written. Called once per outage: again
    /// only after a successful write. Default: does nothing.
    pub trouble: fn(&str),
}

/// Default size at which a file is full: 64 MiB.
pub const DEFAULT_FILE_BYTES: u64 = 64 << 20;

impl Default for JournalOptions {
    fn default() -> Self {
        Self { fsync: Fsync::Interval(1_000), file_bytes: DEFAULT_FILE_BYTES, trouble: |_| () }
    }
}

/// The location of a written entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryLocation {
    /// The number of the file.
    pub(super) file: u64,
    /// Length of the entry's frame in bytes.
    pub(super) bytes: u64,
    /// True if that file is full now, so that [`JournalFiles::rotate`] is due.
    pub(super) full: bool,
}

/// An open journal. Dropping it syncs (unless the policy is `never`) and unlocks the folder.
#[derive(Debug)]
pub(super) struct JournalFiles {
    /// Size in bytes at which a file is full.
    file_bytes: u64,
    /// The syncing thread. Declared before `inner`, so that it is dropped first.
    syncer: Syncer,
    /// The files. Shared with the syncing thread.
    inner: Arc<JournalState>,
}

/// The content of the first file of a new journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstFile<'a> {
    /// An arbitrary number, different for each journal.
    pub(super) salt: u32,
    /// The initial state of the journal.
    pub(super) snapshot: &'a [u8],
}

/// Result of opening a journal.
#[derive(Debug)]
pub(super) struct OpenedJournal {
    /// The journal, ready for appending.
    pub(super) journal: JournalFiles,
    /// The half-written end that was cut off, if there was one.
    pub(super) cut: Option<CutTail>,
}

#[derive(Debug)]
struct JournalState {
    folder: Folder,
    writer: Mutex<JournalWriter>,
}

#[derive(Debug)]
struct JournalWriter {
    /// The newest file, with the cursor at its end.
    file: Arc<File>,
    /// The number of the newest file.
    number: u64,
    /// Initial value of the newest file's checksums.
    salt: u32,
    /// Length of the newest file in bytes. Nothing follows it.
    length: u64,
    /// Length at which the newest file is full. Raised when a rotation fails, so that not every
    /// append tries again.
    full_at: u64,
    /// The number of the next entry.
    next: u64,
    /// The number of the oldest file.
    oldest: u64,
    /// Buffer in which frames are built. Kept so that an append does not allocate.
    frame: Vec<u8>,
    /// Reason why nothing may be appended any more.
    broken: Option<String>,
}

impl JournalFiles {
    /// Opens the journal in `folder` and calls `apply` with everything in it. An empty folder gets
    /// the `first` file.
    pub(super) fn open(
        folder: &Path,
        options: JournalOptions,
        first: FirstFile<'_>,
        apply: &mut Apply<'_>,
    ) -> Result<OpenedJournal, OpenError> {
        let folder = Folder::open(folder)?;
        let (writer, cut) = match replay::replay(&folder, apply)? {
            Some(end) => JournalWriter::resume(&folder, &end, options.file_bytes)?,
            None => (JournalWriter::begin(&folder, options, first)?, None),
        };
        let path = folder.file(writer.number);
        let synced_up_to = writer.next - 1;
        let inner = Arc::new(JournalState { folder, writer: Mutex::new(writer) });
        let target = Arc::clone(&inner) as Arc<dyn SyncTarget>;
        let syncer = Syncer::start(options.fsync, synced_up_to, target).map_err(|source| {
            OpenError::Io { verb: "start the thread that syncs", path, source }
        })?;
        let journal = Self { file_bytes: options.file_bytes, syncer, inner };
        Ok(OpenedJournal { journal, cut })
    }

    /// Appends the entry that `fill` writes to its argument. The entry has been written when this
    /// returns, so killing the process cannot lose it.
    pub(super) fn append(
        &self,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<EntryLocation, AppendError> {
        self.inner.writer().append(Kind::Entry, fill)
    }

    /// Waits until an entry is as safe as the sync policy promises. Returns at once unless that is
    /// [`Fsync::Always`].
    pub(super) async fn durable(&self, number: u64) -> Result<(), SyncError> {
        self.syncer.durable(number).await
    }

    /// Returns the number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.inner.writer().next - 1
    }

    /// Returns true if the newest file is full, so that [`JournalFiles::rotate`] is due.
    pub(super) fn is_full(&self) -> bool {
        let writer = self.inner.writer();
        writer.length >= writer.full_at && writer.broken.is_none()
    }

    /// Begins the next file with `snapshot`, the state that all entries so far lead to. The caller
    /// must prevent concurrent appends.
    ///
    /// After an error the journal continues in the old file.
    pub(super) fn rotate(&self, snapshot: &[u8]) -> Result<(), AppendError> {
        let mut writer = self.inner.writer();
        let rotated = writer.rotate(&self.inner.folder, snapshot, self.file_bytes);
        if rotated.is_err() {
            writer.full_at = writer.length + self.file_bytes / 8;
        }
        rotated
    }

    /// Deletes the files below number `file`, whose entries are no longer needed. The next replay
    /// starts with that file's snapshot.
    pub(super) fn drop_below(&self, file: u64) -> Result<(), AppendError> {
        self.inner.writer().drop_below(&self.inner.folder, file)
    }

    /// Merges all files below number `file` into one: the snapshot of `file`, followed by the
    /// entries that `keep` selects. `kept` is called with each of them. The caller must not run two
    /// compactions at a time.
    pub(super) fn compact_below(
        &self,
        file: u64,
        keep: &dyn Fn(&[u8]) -> bool,
        kept: &mut dyn FnMut(&[u8]),
    ) -> Result<(), AppendError> {
        let (oldest, newest) = {
            let writer = self.inner.writer();
            (writer.oldest, writer.number)
        };
        let file = file.min(newest);
        if file <= oldest {
            return Ok(());
        }
        let failed = |problem: io::Error| AppendError::Write(problem.to_string());
        // Appends continue meanwhile: compaction does not touch the newest file.
        compact::compact(&self.inner.folder, oldest..file, keep, kept).map_err(failed)?;
        self.inner.writer().oldest = file - 1;
        (oldest..file - 1).try_for_each(|old| self.inner.folder.remove(old)).map_err(failed)?;
        self.inner.folder.sync().map_err(failed)
    }

    /// Returns the numbers of the files, from the oldest to the newest.
    pub(super) fn files(&self) -> RangeInclusive<u64> {
        let writer = self.inner.writer();
        writer.oldest..=writer.number
    }

    /// Returns the number of syncs so far.
    #[cfg(test)]
    pub(super) fn syncs(&self) -> u64 {
        self.syncer.count()
    }
}

impl JournalState {
    fn writer(&self) -> MutexGuard<'_, JournalWriter> {
        // Only `fill` can panic under the lock, before anything of the frame is written.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SyncTarget for JournalState {
    fn target(&self) -> (Arc<File>, u64) {
        let writer = self.writer();
        (Arc::clone(&writer.file), writer.next - 1)
    }

    fn fail(&self, problem: &SyncError) {
        self.writer().broken.get_or_insert_with(|| problem.to_string());
    }
}

impl JournalWriter {
    /// Creates the first file of a journal.
    fn begin(
        folder: &Folder,
        options: JournalOptions,
        first: FirstFile<'_>,
    ) -> Result<Self, OpenError> {
        let header = FileHeader { salt: first.salt, file: 1, first: 1, replaces_older: false };
        let (file, length) = folder.create(header, first.snapshot).map_err(|source| {
            OpenError::Io { verb: "create", path: folder.file(header.file), source }
        })?;
        Ok(Self {
            file: Arc::new(file),
            number: header.file,
            salt: header.salt,
            length,
            full_at: options.file_bytes,
            next: header.first + 1,
            oldest: header.file,
            frame: Vec::new(),
            broken: None,
        })
    }

    /// Continues where a replay ended: cuts off a torn tail and finishes an interrupted deletion.
    fn resume(
        folder: &Folder,
        end: &JournalEnd,
        full_at: u64,
    ) -> Result<(Self, Option<CutTail>), OpenError> {
        let path = folder.file(end.file);
        let prepare = || {
            let mut file = File::options().write(true).open(&path)?;
            if end.torn > 0 {
                file.set_len(end.length)?;
            }
            // Entries that a killed process wrote may not be synced yet. They may be read from now
            // on, so they must survive a power cut.
            file.sync_data()?;
            file.seek(SeekFrom::Start(end.length))?;
            for number in folder.numbers().unwrap_or_default() {
                if number < end.oldest {
                    folder.remove(number)?;
                }
            }
            Ok(file)
        };
        let file = prepare().map_err(|source| OpenError::Io {
            verb: "write to",
            path: path.clone(),
            source,
        })?;
        let writer = Self {
            file: Arc::new(file),
            number: end.file,
            salt: end.salt,
            length: end.length,
            full_at,
            next: end.next,
            oldest: end.oldest,
            frame: Vec::new(),
            broken: None,
        };
        let cut = CutTail { path, offset: end.length, bytes: end.torn };
        Ok((writer, (end.torn > 0).then_some(cut)))
    }

    fn append(
        &mut self,
        kind: Kind,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<EntryLocation, AppendError> {
        self.refuse_if_broken()?;
        self.frame.clear();
        frame::write(&mut self.frame, self.salt, self.next, kind, fill)
            .ok_or(AppendError::TooLong)?;
        if let Err(problem) = (&*self.file).write_all(&self.frame) {
            self.cut_back(&problem);
            return Err(AppendError::Write(problem.to_string()));
        }
        self.length += self.frame.len() as u64;
        let place = EntryLocation {
            file: self.number,
            bytes: self.frame.len() as u64,
            full: self.length >= self.full_at,
        };
        self.next += 1;
        Ok(place)
    }

    fn refuse_if_broken(&self) -> Result<(), AppendError> {
        match &self.broken {
            Some(problem) => Err(AppendError::Broken(problem.clone())),
            None => Ok(()),
        }
    }

    /// Cuts off the remains of a failed write, so that the next frame follows the last complete
    /// one.
    fn cut_back(&mut self, problem: &io::Error) {
        let cut = self
            .file
            .set_len(self.length)
            .and_then(|()| (&*self.file).seek(SeekFrom::Start(self.length)));
        if cut.is_err() {
            self.broken = Some(problem.to_string());
        }
    }

    fn rotate(
        &mut self,
        folder: &Folder,
        snapshot: &[u8],
        file_bytes: u64,
    ) -> Result<(), AppendError> {
        self.refuse_if_broken()?;
        // The syncing thread only syncs the newest file.
        self.sync()?;
        let header = FileHeader {
            // Any different number is valid.
            salt: self.salt.wrapping_mul(0x9E37_79B1).wrapping_add(1),
            file: self.number + 1,
            first: self.next,
            replaces_older: false,
        };
        let (file, length) = folder
            .create(header, snapshot)
            .map_err(|problem| AppendError::Write(problem.to_string()))?;
        // The seal only helps to notice a lost newest file, so writing it may fail.
        let _ = self.append(Kind::Sealed, |_| ());
        self.file = Arc::new(file);
        self.number = header.file;
        self.salt = header.salt;
        self.length = length;
        self.full_at = file_bytes.max(length * 2);
        self.next = header.first + 1;
        Ok(())
    }

    fn drop_below(&mut self, folder: &Folder, file: u64) -> Result<(), AppendError> {
        let file = file.min(self.number);
        if file <= self.oldest {
            return Ok(());
        }
        self.append(Kind::Dropped, |out| out.extend_from_slice(&file.to_le_bytes()))?;
        // The note must reach the disk before the deletion. Otherwise the deleted file looks lost.
        self.sync()?;
        while self.oldest < file {
            folder
                .remove(self.oldest)
                .map_err(|problem| AppendError::Write(problem.to_string()))?;
            self.oldest += 1;
        }
        folder.sync().map_err(|problem| AppendError::Write(problem.to_string()))
    }

    fn sync(&mut self) -> Result<(), AppendError> {
        self.file.sync_data().map_err(|problem| {
            let problem = SyncError(problem.to_string()).to_string();
            self.broken = Some(problem.clone());
            AppendError::Broken(problem)
        })
    }
}
