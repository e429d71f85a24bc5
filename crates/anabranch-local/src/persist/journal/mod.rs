//! The journal: entries go in at the end, one write each, and come back at the next opening.
//!
//! ```text
//!  append(bytes) ─→ frame ─→ write(2) ─→ newest file ─→ full? ─→ rotate(snapshot) ─→ next file
//!                                            │
//!  durable(lsn) ─→ syncing thread ─→ fdatasync
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

/// How a journal is kept.
#[derive(Debug, Clone, Copy)]
pub struct JournalOptions {
    /// When entries reach stable storage.
    pub fsync: Fsync,
    /// A file of this many bytes is full, and the next one is begun.
    pub file_bytes: u64,
    /// Is told why the journal can't be written: once, and again when it could be in between.
    pub trouble: fn(&str),
}

/// The size at which a file is full, unless told otherwise: 64 MiB.
pub const DEFAULT_FILE_BYTES: u64 = 64 << 20;

impl Default for JournalOptions {
    fn default() -> Self {
        Self { fsync: Fsync::Interval(1_000), file_bytes: DEFAULT_FILE_BYTES, trouble: |_| () }
    }
}

/// Where an entry was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryLocation {
    /// The file that holds it.
    pub(super) file: u64,
    /// The bytes that it takes there.
    pub(super) bytes: u64,
    /// Whether that file is full now: it is time for [`JournalFiles::rotate`].
    pub(super) full: bool,
}

/// An open journal. Dropping it syncs (unless the policy is `never`) and frees the folder.
#[derive(Debug)]
pub(super) struct JournalFiles {
    /// Where files are full.
    file_bytes: u64,
    /// The thread that syncs; before `inner`, so that it ends first.
    syncer: Syncer,
    /// The files. Shared with the syncing thread.
    inner: Arc<JournalState>,
}

/// What the first file of a new journal is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstFile<'a> {
    /// Any number, another one for each journal.
    pub(super) salt: u32,
    /// The state that the journal begins with.
    pub(super) snapshot: &'a [u8],
}

/// What opening a journal found.
#[derive(Debug)]
pub(super) struct OpenedJournal {
    /// The journal, ready for appending.
    pub(super) journal: JournalFiles,
    /// The half-written end that was cut off, if there was one.
    pub(super) cut: Option<CutTail>,
}

#[derive(Debug)]
struct JournalState {
    /// Where the files are.
    folder: Folder,
    /// The newest file.
    writer: Mutex<JournalWriter>,
}

#[derive(Debug)]
struct JournalWriter {
    /// The newest file, its cursor at the end.
    file: Arc<File>,
    /// Its number.
    number: u64,
    /// Where its checksums start from.
    salt: u32,
    /// Its length; behind that is nothing.
    length: u64,
    /// The length at which it is full. Moves up when a rotation failed, so that not each append
    /// tries again.
    full_at: u64,
    /// The number of the next entry.
    next: u64,
    /// The oldest file.
    oldest: u64,
    /// Where frames are built; kept, so that an append allocates nothing.
    frame: Vec<u8>,
    /// Why nothing may be appended any more.
    broken: Option<String>,
}

impl JournalFiles {
    /// Opens the journal in `folder`, feeding everything in it to `apply`. An empty folder gets
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

    /// Appends the entry that `fill` writes to the end of its argument. It is written when this
    /// returns: killing the process can't lose it.
    pub(super) fn append(
        &self,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<EntryLocation, AppendError> {
        self.inner.writer().append(Kind::Entry, fill)
    }

    /// Waits until an entry is as safe as the sync policy promises. At once, unless that is
    /// [`Fsync::Always`].
    pub(super) async fn durable(&self, number: u64) -> Result<(), SyncError> {
        self.syncer.durable(number).await
    }

    /// The last entry.
    pub(super) fn last(&self) -> u64 {
        self.inner.writer().next - 1
    }

    /// Whether the newest file is full: it is time for [`JournalFiles::rotate`].
    pub(super) fn is_full(&self) -> bool {
        let writer = self.inner.writer();
        writer.length >= writer.full_at && writer.broken.is_none()
    }

    /// Begins the next file with `snapshot`, the state that all entries so far lead to. The caller
    /// keeps others from appending meanwhile.
    ///
    /// After an error the journal goes on in the old file.
    pub(super) fn rotate(&self, snapshot: &[u8]) -> Result<(), AppendError> {
        let mut writer = self.inner.writer();
        let rotated = writer.rotate(&self.inner.folder, snapshot, self.file_bytes);
        if rotated.is_err() {
            writer.full_at = writer.length + self.file_bytes / 8;
        }
        rotated
    }

    /// Deletes the files below number `file`, whose entries nobody needs any more. The next replay
    /// starts with that file's snapshot.
    pub(super) fn drop_below(&self, file: u64) -> Result<(), AppendError> {
        self.inner.writer().drop_below(&self.inner.folder, file)
    }

    /// Makes one file of all files below number `file`, with the entries that `keep` chooses
    /// (`kept` is told) behind the snapshot of `file`. The caller does one such thing at a time.
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
        // Appends go on meanwhile: nothing here touches the newest file.
        compact::compact(&self.inner.folder, oldest..file, keep, kept).map_err(failed)?;
        self.inner.writer().oldest = file - 1;
        (oldest..file - 1).try_for_each(|old| self.inner.folder.remove(old)).map_err(failed)?;
        self.inner.folder.sync().map_err(failed)
    }

    /// The numbers of the files, from the oldest to the newest.
    pub(super) fn files(&self) -> RangeInclusive<u64> {
        let writer = self.inner.writer();
        writer.oldest..=writer.number
    }

    /// How many syncs the thread made.
    #[cfg(test)]
    pub(super) fn syncs(&self) -> u64 {
        self.syncer.count()
    }
}

impl JournalState {
    fn writer(&self) -> MutexGuard<'_, JournalWriter> {
        // A panic can happen in a `fill` only, when nothing of the frame is written yet.
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
    /// Makes the first file of a journal.
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

    /// Goes on where a replay ended: cuts a torn tail, finishes an interrupted deletion.
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
            // Entries that only a killed process wrote may be read from now on, so they must stay.
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

    /// Removes what a failed write left, so that the next frame follows the last whole one.
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
        // The syncing thread looks at the newest file only.
        self.sync()?;
        let header = FileHeader {
            // Any other number will do.
            salt: self.salt.wrapping_mul(0x9E37_79B1).wrapping_add(1),
            file: self.number + 1,
            first: self.next,
            replaces_older: false,
        };
        let (file, length) = folder
            .create(header, snapshot)
            .map_err(|problem| AppendError::Write(problem.to_string()))?;
        // Only a help for noticing a lost newest file, so it may fail.
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
        // The note must not be lost where the deletion is not: that would look like a lost file.
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
