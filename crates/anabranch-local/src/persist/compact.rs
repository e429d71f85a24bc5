//! Compaction: replaces the oldest files by one small file when little in them is still needed.
//!
//! Files can only be dropped from the old end, so one stream with a long retention would keep
//! everything that other streams wrote. The new file holds the needed part of the old ones. It
//! takes the name of the newest of them, and its header says that it replaces the others. One
//! rename makes it take effect, and a crash before or after leaves a journal that reads the same.

use super::folder::Folder;
use super::frame::{self, Kind};
use super::header::{FILE_HEADER_BYTES, FileHeader};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;

/// Replaces the sealed files `files` by one with the number `files.end - 1`. The new file begins
/// with the snapshot of file `files.end`, followed by the entries that `keep` selects. `kept` is
/// called with each of them.
///
/// The entries follow a snapshot that is later than they are, so `keep` must select only entries
/// that mean the same there.
pub(super) fn compact(
    folder: &Folder,
    files: Range<u64>,
    keep: &dyn Fn(&[u8]) -> bool,
    kept: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let next = Sealed::read(folder, files.end)?;
    let snapshot = next.snapshot()?;
    let mut count = 0;
    for number in files.clone() {
        Sealed::read(folder, number)?.for_each_entry(|entry| {
            count += u64::from(keep(entry));
            Ok(())
        })?;
    }
    // The last frame of the new file and the first of the next share a number, so a lost entry is
    // noticed here too.
    let header = FileHeader {
        salt: next.header.salt.wrapping_add(1),
        file: files.end - 1,
        first: next.header.first.checked_sub(count + 1).ok_or_else(damaged)?,
        replaces_older: true,
    };
    let unfinished = folder.unfinished();
    let written = (|| {
        let mut out = Output::begin(&unfinished, header, snapshot)?;
        for number in files.clone() {
            Sealed::read(folder, number)?.for_each_entry(|entry| {
                if !keep(entry) {
                    return Ok(());
                }
                kept(entry);
                out.write(Kind::Entry, entry)
            })?;
        }
        out.write(Kind::Sealed, &[])?;
        out.finish()?;
        fs::rename(&unfinished, folder.file(header.file))?;
        folder.sync()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a journal file was damaged since it was written")
}

/// A journal file that is complete: no more entries are appended to it.
struct Sealed {
    bytes: Vec<u8>,
    header: FileHeader,
}

impl Sealed {
    fn read(folder: &Folder, number: u64) -> io::Result<Self> {
        let bytes = fs::read(folder.file(number))?;
        let header = FileHeader::read(&bytes).map_err(|_| damaged())?;
        Ok(Self { bytes, header })
    }

    fn snapshot(&self) -> io::Result<&[u8]> {
        let frame = frame::read(&self.bytes, FILE_HEADER_BYTES, self.header.salt);
        let frame = frame.map_err(|_| damaged())?;
        Ok(&self.bytes[frame.payload])
    }

    fn for_each_entry(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut at = FILE_HEADER_BYTES;
        while at < self.bytes.len() {
            let frame = frame::read(&self.bytes, at, self.header.salt).map_err(|_| damaged())?;
            at = frame.payload.end;
            if frame.kind == Kind::Entry {
                take(&self.bytes[frame.payload])?;
            }
        }
        Ok(())
    }
}

/// The file being written.
struct Output {
    file: BufWriter<File>,
    salt: u32,
    /// The number of the next frame.
    next: u64,
    /// Buffer in which frames are built.
    frame: Vec<u8>,
}

impl Output {
    fn begin(path: &std::path::Path, header: FileHeader, snapshot: &[u8]) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        let mut frame = Vec::new();
        header.write(&mut frame);
        file.write_all(&frame)?;
        let mut out = Self { file, salt: header.salt, next: header.first, frame };
        out.write(Kind::Snapshot, snapshot)?;
        Ok(out)
    }

    fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.frame.clear();
        frame::write(&mut self.frame, self.salt, self.next, kind, |out| {
            out.extend_from_slice(payload);
        })
        .ok_or(io::ErrorKind::FileTooLarge)?;
        self.next += 1;
        self.file.write_all(&self.frame)
    }

    fn finish(self) -> io::Result<()> {
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()
    }
}
