//! The first bytes of a journal file: the format, the file's number, and the number of its first
//! frame.

/// Marks a file as a journal.
const MAGIC: &[u8; 8] = b"anabrlog";
/// Version of the layout of header, frames and entries. A reader refuses every other version.
pub(super) const FORMAT_VERSION: u32 = 1;
/// Bytes of a header.
pub(super) const FILE_HEADER_BYTES: usize = 40;
/// Offset of the header's checksum.
const CHECKSUM_AT: usize = FILE_HEADER_BYTES - 4;

/// The header of a journal file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// Initial value of the checksums of this file's frames.
    pub(super) salt: u32,
    /// The number in the file's name.
    pub(super) file: u64,
    /// The number of the file's first frame, its snapshot.
    pub(super) first: u64,
    /// True if the file holds everything still needed from older ones, which may be missing.
    pub(super) replaces_older: bool,
}

/// Reason why a file does not begin with a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("the file does not begin with a journal header")]
    Magic,
    #[error("it has format {0}, but this version supports only format {FORMAT_VERSION}")]
    Version(u32),
    #[error("the checksum of the header does not match")]
    Checksum,
}

impl FileHeader {
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&self.file.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&u32::from(self.replaces_older).to_le_bytes());
        let checksum = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Parses a header. Compares the version before the checksum, because another version may
    /// compute the checksum differently.
    pub(super) fn read(file: &[u8]) -> Result<Self, HeaderError> {
        let bytes: &[u8; FILE_HEADER_BYTES] = file.first_chunk().ok_or(HeaderError::Magic)?;
        if !bytes.starts_with(MAGIC) {
            return Err(HeaderError::Magic);
        }
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(HeaderError::Version(version));
        }
        if crc32fast::hash(&bytes[..CHECKSUM_AT]) != u32_at(bytes, CHECKSUM_AT) {
            return Err(HeaderError::Checksum);
        }
        Ok(Self {
            salt: u32_at(bytes, 12),
            file: u64_at(bytes, 16),
            first: u64_at(bytes, 24),
            replaces_older: u32_at(bytes, 32) != 0,
        })
    }
}

fn u32_at(bytes: &[u8; FILE_HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8; FILE_HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_every_flipped_bit_is_noticed() {
        let header = FileHeader { salt: 1, file: 2, first: 3, replaces_older: true };
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        assert_eq!(bytes.len(), FILE_HEADER_BYTES);
        assert_eq!(FileHeader::read(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::read(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Vec::new();
        FileHeader { salt: 1, file: 2, first: 3, replaces_older: true }.write(&mut bytes);
        bytes[8] = 9;
        assert_eq!(FileHeader::read(&bytes), Err(HeaderError::Version(9)));
    }
}
