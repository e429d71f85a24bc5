//! Replay of a journal: reads every entry in order, finds a torn tail and refuses damage.
//!
//! A *torn tail* is the result of a crash in the middle of a write: an incomplete or wrong entry at
//! the end of the last file, with nothing valid after it. Any other error is damage: something that
//! was completely written is lost, and continuing would hide that.

use super::error::OpenError;
use super::folder::Folder;
use super::frame::{self, FRAME_HEADER_BYTES, FrameError, Kind};
use super::header::{FILE_HEADER_BYTES, FileHeader};
use std::path::PathBuf;

/// An entry read back from disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplayedEntry<'a> {
    /// The number of the journal file that holds it.
    pub(super) file: u64,
    pub(super) content: ReplayedContent<'a>,
}

/// The content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayedContent<'a> {
    /// The snapshot at the start of the oldest file. Always the first entry, and only that.
    Start(&'a [u8]),
    /// The snapshot of a later file: the state that the entries before it lead to.
    Snapshot(&'a [u8]),
    /// An entry that was appended.
    Appended(&'a [u8]),
}

/// The half-written end of a journal after a crash, which was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutTail {
    /// The file that was cut.
    pub path: PathBuf,
    /// Length of the file after the cut, in bytes.
    pub offset: u64,
    /// Number of bytes cut off.
    pub bytes: u64,
}

/// The end of a file that grew before its bytes reached the disk.
const UNWRITTEN: [u8; 16] = [0; 16];

/// Receives the entries of a journal. An error text stops the replay.
pub(super) type Apply<'a> = dyn FnMut(ReplayedEntry<'_>) -> Result<(), String> + 'a;

/// The end of a journal, where appending continues.
#[derive(Debug)]
pub(super) struct JournalEnd {
    /// The number of the newest file.
    pub(super) file: u64,
    /// The number of the oldest file that is still needed.
    pub(super) oldest: u64,
    /// The salt of the newest file.
    pub(super) salt: u32,
    /// The length of the newest file in bytes, without a torn tail.
    pub(super) length: u64,
    /// Bytes of the torn tail after `length`.
    pub(super) torn: u64,
    /// The number of the next entry.
    pub(super) next: u64,
}

/// Reads all files of `folder`. Returns `None` if there are none yet.
pub(super) fn replay(
    folder: &Folder,
    apply: &mut Apply<'_>,
) -> Result<Option<JournalEnd>, OpenError> {
    let mut files = folder.numbers()?;
    // A file that replaces older ones makes them irrelevant, even if they still exist.
    let base = files
        .iter()
        .copied()
        .rev()
        .find(|number| folder.header(*number).is_some_and(|header| header.replaces_older));
    files.retain(|number| base.is_none_or(|base| *number >= base));
    let (Some(&oldest), Some(&newest)) = (files.first(), files.last()) else { return Ok(None) };
    if let Some(pair) = files.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        return Err(OpenError::Missing { path: folder.file(pair[0] + 1) });
    }
    let mut reader =
        ReplayState { folder, apply, oldest, newest, needed: base.unwrap_or(1), reached: None };
    for file in files {
        reader.read_file(file)?;
    }
    // A drop is recorded before it happens, so a file that is missing without a record was lost.
    if oldest > reader.needed {
        return Err(OpenError::Missing { path: folder.file(reader.needed) });
    }
    let needed = reader.needed;
    Ok(reader.reached.map(|end| JournalEnd { oldest: needed, ..end }))
}

/// The state of a replay.
struct ReplayState<'a, 'b> {
    folder: &'a Folder,
    apply: &'a mut Apply<'b>,
    /// The number of the first file that exists.
    oldest: u64,
    /// The number of the last file that exists.
    newest: u64,
    /// The number of the first file that must exist, according to the entries read so far.
    needed: u64,
    /// The end of the files read so far.
    reached: Option<JournalEnd>,
}

impl ReplayState<'_, '_> {
    fn read_file(&mut self, file: u64) -> Result<(), OpenError> {
        let path = self.folder.file(file);
        let bytes = std::fs::read(&path).map_err(|source| OpenError::Io {
            verb: "read",
            path: path.clone(),
            source,
        })?;
        let header = FileHeader::read(&bytes).map_err(|problem| OpenError::NotAJournal {
            path: path.clone(),
            problem: problem.to_string(),
        })?;
        if header.file != file {
            let problem = format!("its header belongs to file {}", header.file);
            return Err(OpenError::NotAJournal { path, problem });
        }
        if let Some(before) = self.reached.as_ref().filter(|end| end.next != header.first) {
            let problem =
                format!("entries {} to {} are missing here", before.next, header.first - 1);
            let path = self.folder.file(before.file);
            return Err(OpenError::Damaged { path, offset: before.length, problem });
        }
        let end = self.read_frames(file, header, &bytes)?;
        self.reached = Some(end);
        Ok(())
    }

    fn read_frames(
        &mut self,
        file: u64,
        header: FileHeader,
        bytes: &[u8],
    ) -> Result<JournalEnd, OpenError> {
        let damaged = |at: usize, problem: String| OpenError::Damaged {
            path: self.folder.file(file),
            offset: at as u64,
            problem,
        };
        let (mut at, mut next, mut sealed) = (FILE_HEADER_BYTES, header.first, false);
        while at < bytes.len() {
            let frame = match frame::read(bytes, at, header.salt) {
                Ok(frame) => frame,
                Err(problem) if self.is_torn_tail(file, header, bytes, at, next, problem) => break,
                Err(problem) => return Err(damaged(at, problem.to_string())),
            };
            if frame.number != next {
                let problem = format!("expected entry {next}, found entry {}", frame.number);
                return Err(damaged(at, problem));
            }
            if sealed || (frame.kind == Kind::Snapshot) != (next == header.first) {
                return Err(damaged(at, "an entry is out of order".to_owned()));
            }
            let payload = &bytes[frame.payload.clone()];
            self.take(file, frame.kind, payload).map_err(|problem| OpenError::Unusable {
                path: self.folder.file(file),
                offset: at as u64,
                problem,
            })?;
            sealed = frame.kind == Kind::Sealed;
            next += u64::from(!sealed);
            at = frame.payload.end;
        }
        if next == header.first {
            return Err(damaged(FILE_HEADER_BYTES, FrameError::Incomplete.to_string()));
        }
        if sealed && file == self.newest {
            return Err(OpenError::Missing { path: self.folder.file(file + 1) });
        }
        let torn = (bytes.len() - at) as u64;
        Ok(JournalEnd { file, oldest: 0, salt: header.salt, length: at as u64, torn, next })
    }

    /// Returns true if the problem at `at` is only a write that a crash interrupted.
    fn is_torn_tail(
        &self,
        file: u64,
        header: FileHeader,
        bytes: &[u8],
        at: usize,
        next: u64,
        problem: FrameError,
    ) -> bool {
        // The numbers that frames in the rest of the file could have if all of them were empty.
        let most = (bytes.len() - at) / FRAME_HEADER_BYTES + 1;
        let numbers = next..next.saturating_add(most as u64);
        // A killed process leaves the start of a frame. A power cut may leave zeros in place of the
        // rest. A complete frame with a wrong checksum may have been acknowledged, so it is damage.
        // A frame of an unknown kind comes from another version.
        let unwritten = bytes.ends_with(&UNWRITTEN);
        let interrupted = problem == FrameError::Incomplete || unwritten;
        // A snapshot appears as a whole by a rename, so it is never torn.
        file == self.newest
            && problem != FrameError::Kind
            && interrupted
            && next != header.first
            && frame::find(bytes, at + 1, header.salt, &numbers).is_none()
    }

    fn take(&mut self, file: u64, kind: Kind, payload: &[u8]) -> Result<(), String> {
        let content = match kind {
            Kind::Snapshot if file == self.oldest => ReplayedContent::Start(payload),
            Kind::Snapshot => ReplayedContent::Snapshot(payload),
            Kind::Entry => ReplayedContent::Appended(payload),
            Kind::Sealed => return Ok(()),
            Kind::Dropped => {
                let below = payload.try_into().map(u64::from_le_bytes);
                let below = below.map_err(|_| "its content is not a file name".to_owned())?;
                self.needed = self.needed.max(below);
                return Ok(());
            }
        };
        (self.apply)(ReplayedEntry { file, content })
    }
}
