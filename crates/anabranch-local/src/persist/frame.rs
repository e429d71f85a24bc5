//! One entry on disk: `length u32 | checksum u32 | number u64 | kind u8 | payload`, little endian.
//!
//! The checksum covers the length and everything after the checksum. It starts from the file's
//! salt, so that a frame copied from another file is not mistaken for one of this file. (A record
//! may hold any bytes, including those of a journal.)

use std::ops::Range;

/// Bytes before a payload.
pub(super) const FRAME_HEADER_BYTES: usize = 17;
/// Offset of the checksummed rest, after length and checksum.
const CHECKED_FROM: usize = 8;

/// The kind of content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The state before the file's first entry. Always the first frame of a file, and only that.
    Snapshot,
    /// An entry.
    Entry,
    /// Files below the number in the payload are no longer needed and may be missing.
    Dropped,
    /// The journal continues in the next file. Has the same number as that file's snapshot.
    Sealed,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Snapshot => 0,
            Self::Entry => 1,
            Self::Dropped => 2,
            Self::Sealed => 3,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        [Self::Snapshot, Self::Entry, Self::Dropped, Self::Sealed]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// A frame with a valid checksum.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// Position of the payload in the file.
    pub(super) payload: Range<usize>,
}

/// Reason why an offset holds no valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the file ends inside an entry")]
    Incomplete,
    #[error("the checksum of an entry does not match its bytes")]
    Checksum,
    #[error("the kind of an entry is unknown to this version")]
    Kind,
}

/// Appends a frame to `out`, with the payload that `fill` writes.
///
/// Returns `None` and leaves `out` unchanged if the payload is too long for the length field.
pub(super) fn write(
    out: &mut Vec<u8>,
    salt: u32,
    number: u64,
    kind: Kind,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Option<()> {
    let start = out.len();
    out.extend_from_slice(&[0; CHECKED_FROM]);
    out.extend_from_slice(&number.to_le_bytes());
    out.push(kind.code());
    fill(out);
    let Ok(length) = u32::try_from(out.len() - start - FRAME_HEADER_BYTES) else {
        out.truncate(start);
        return None;
    };
    let checksum = checksum(salt, length, &out[start + CHECKED_FROM..]);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
    Some(())
}

/// Reads the frame at `at`. Allocates nothing, whatever the length field says.
pub(super) fn read(file: &[u8], at: usize, salt: u32) -> Result<Frame, FrameError> {
    let head = header(file, at).ok_or(FrameError::Incomplete)?;
    let checked = file.get(at + CHECKED_FROM..head.payload.end).ok_or(FrameError::Incomplete)?;
    if checksum(salt, head.length, checked) != head.checksum {
        return Err(FrameError::Checksum);
    }
    let kind = Kind::of_code(head.kind).ok_or(FrameError::Kind)?;
    Ok(Frame { number: head.number, kind, payload: head.payload })
}

/// Returns the first offset, from `from` on, of a valid frame with a number in `numbers`.
///
/// The range of numbers keeps this fast: the checksum is computed for few offsets only.
pub(super) fn find(file: &[u8], from: usize, salt: u32, numbers: &Range<u64>) -> Option<usize> {
    (from..file.len()).find(|at| {
        header(file, *at).is_some_and(|head| {
            numbers.contains(&head.number)
                && head.payload.end <= file.len()
                && read(file, *at, salt).is_ok()
        })
    })
}

/// The fields before a payload, not yet verified.
struct FrameHeader {
    length: u32,
    checksum: u32,
    number: u64,
    kind: u8,
    payload: Range<usize>,
}

fn header(file: &[u8], at: usize) -> Option<FrameHeader> {
    let bytes: &[u8; FRAME_HEADER_BYTES] = file.get(at..)?.first_chunk()?;
    let (length, rest) = bytes.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let payload = at + FRAME_HEADER_BYTES;
    Some(FrameHeader {
        length,
        checksum: u32::from_le_bytes(*checksum),
        number: u64::from_le_bytes(*number),
        kind: *rest.first()?,
        payload: payload..payload.checked_add(usize::try_from(length).ok()?)?,
    })
}

fn checksum(salt: u32, length: u32, checked: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(&length.to_le_bytes());
    hasher.update(checked);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u32 = 7;

    fn framed(number: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, SALT, number, Kind::Entry, |out| out.extend_from_slice(payload)).unwrap();
        out
    }

    #[test]
    fn a_frame_reads_back_at_any_offset() {
        for payload in [&b""[..], b"x", &[0xff; 300]] {
            let mut file = b"before".to_vec();
            file.extend(framed(42, payload));
            let frame = read(&file, 6, SALT).unwrap();
            assert_eq!((frame.number, frame.kind), (42, Kind::Entry));
            assert_eq!(&file[frame.payload], payload);
        }
    }

    #[test]
    fn every_bit_of_a_frame_is_covered() {
        let whole = framed(42, b"payload");
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped, 0, SALT).is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length], 0, SALT), Err(FrameError::Incomplete));
        }
    }

    #[test]
    fn a_frame_of_another_file_is_not_one() {
        assert_eq!(read(&framed(42, b"payload"), 0, SALT + 1), Err(FrameError::Checksum));
    }

    #[test]
    fn a_search_finds_the_first_frame_with_a_fitting_number() {
        let mut file = b"garbage".to_vec();
        file.extend(framed(4, b"old"));
        let second = file.len();
        file.extend(framed(5, b"new"));
        assert_eq!(find(&file, 0, SALT, &(4..9)), Some(7));
        assert_eq!(find(&file, 0, SALT, &(5..9)), Some(second));
        assert_eq!(find(&file, 0, SALT, &(6..9)), None);
    }
}
