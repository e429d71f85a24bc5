//! Partition keys: short ones are stored inline, long ones share their bytes.

use bytes::Bytes;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Longest inline key in bytes, limited by the space beside the enum's discriminant.
const INLINE_MAX_BYTES: usize = 23;

// A key is copied several times on its path, so it must not grow.
const _: () = assert!(size_of::<PartitionKey>() == size_of::<Bytes>());

/// A partition key: bytes that are known to be UTF-8. Cheap to clone.
///
/// A long key from an aggregate is a slice of the aggregate, so it is not copied. It keeps the
/// aggregate's buffer alive, as the record's data does anyway.
#[derive(Clone)]
pub struct PartitionKey(KeyRepr);

#[derive(Clone)]
enum KeyRepr {
    /// The first `len` of these bytes.
    Inline { len: u8, bytes: [u8; INLINE_MAX_BYTES] },
    /// Shared bytes.
    Shared(Bytes),
}

/// Error: bytes are not a partition key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the partition key is not UTF-8 after byte {valid_up_to}")]
pub struct InvalidPartitionKey {
    /// Number of leading bytes that are valid UTF-8.
    pub valid_up_to: usize,
}

fn check(bytes: &[u8]) -> Result<(), InvalidPartitionKey> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(InvalidPartitionKey { valid_up_to: error.valid_up_to() }),
    }
}

/// Returns short bytes as an inline key, or `None` if they are too long.
#[inline]
fn inline(text: &[u8]) -> Option<KeyRepr> {
    let len = u8::try_from(text.len()).ok()?;
    let mut bytes = [0; INLINE_MAX_BYTES];
    bytes.get_mut(..text.len())?.copy_from_slice(text);
    Some(KeyRepr::Inline { len, bytes })
}

impl PartitionKey {
    /// Creates a key from shared bytes. A long key is not copied.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, InvalidPartitionKey> {
        check(&bytes)?;
        Ok(Self(inline(&bytes).unwrap_or(KeyRepr::Shared(bytes))))
    }

    /// Creates a key from a part of shared bytes. A long key is not copied, and a short one does
    /// not keep the buffer alive.
    ///
    /// # Panics
    ///
    /// If `range` is out of bounds.
    pub fn of_slice(bytes: &Bytes, range: Range<usize>) -> Result<Self, InvalidPartitionKey> {
        check(&bytes[range.clone()])?;
        let text = inline(&bytes[range.clone()]);
        Ok(Self(text.unwrap_or_else(|| KeyRepr::Shared(bytes.slice(range)))))
    }

    /// Creates a key from a part of shared bytes that the caller has checked to be UTF-8. Otherwise
    /// like [`PartitionKey::of_slice`].
    #[inline]
    pub(crate) fn of_checked(bytes: &Bytes, range: Range<usize>) -> Self {
        let len = range.len();
        // Copying a fixed number of bytes, including those after the key, is faster than copying
        // the exact length.
        let whole = bytes.get(range.start..).and_then(|rest| rest.first_chunk());
        match (u8::try_from(len), whole) {
            (Ok(short), Some(bytes)) if len <= INLINE_MAX_BYTES => {
                Self(KeyRepr::Inline { len: short, bytes: *bytes })
            }
            _ => {
                let text = inline(&bytes[range.clone()]);
                Self(text.unwrap_or_else(|| KeyRepr::Shared(bytes.slice(range))))
            }
        }
    }

    /// Returns the key as text. Checks the bytes again, which is too cheap to justify `unsafe`. If
    /// bytes are enough, use [`PartitionKey::as_bytes`].
    #[expect(clippy::missing_panics_doc, reason = "the bytes were checked when the key was made")]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a key is made of checked UTF-8 only")
    }

    /// Returns the key's bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyRepr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyRepr::Shared(bytes) => bytes,
        }
    }

    /// Returns the key's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            KeyRepr::Inline { len, .. } => usize::from(*len),
            KeyRepr::Shared(bytes) => bytes.len(),
        }
    }

    /// Returns true if the key is empty. The service refuses it; an aggregate can contain it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&str> for PartitionKey {
    #[inline]
    fn from(key: &str) -> Self {
        let text = inline(key.as_bytes());
        Self(text.unwrap_or_else(|| KeyRepr::Shared(Bytes::copy_from_slice(key.as_bytes()))))
    }
}

impl From<String> for PartitionKey {
    #[inline]
    fn from(key: String) -> Self {
        Self(inline(key.as_bytes()).unwrap_or_else(|| KeyRepr::Shared(Bytes::from(key))))
    }
}

impl AsRef<str> for PartitionKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for PartitionKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PartitionKey {}

impl PartialOrd for PartitionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PartitionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for PartitionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn a_long_key_is_a_slice_of_its_carrier_and_a_short_one_lets_it_go() {
        let text = "ключ, который длиннее двадцати трёх байт";
        let carrier = Bytes::from(format!("..{text}..").into_bytes());
        let long = PartitionKey::of_slice(&carrier, 2..2 + text.len()).unwrap();
        assert_eq!((long.as_str(), long.len()), (text, text.len()));
        assert_eq!(long.as_bytes().as_ptr(), carrier[2..].as_ptr());
        let short = PartitionKey::of_slice(&carrier, 2..10).unwrap();
        assert_eq!((short.as_str(), short.len()), ("ключ", 8));
        drop(long);
        assert!(carrier.is_unique(), "a short key holds nothing of its carrier");
    }

    #[test]
    fn a_key_is_always_utf8() {
        let carrier = Bytes::from_static("ключ".as_bytes());
        let cut = Err(InvalidPartitionKey { valid_up_to: 6 });
        assert_eq!(PartitionKey::of_slice(&carrier, 0..7), cut);
        assert_eq!(PartitionKey::from_utf8(carrier.slice(0..7)), cut);
        assert!(PartitionKey::from_utf8(Bytes::new()).unwrap().is_empty());
    }

    #[test]
    fn keys_are_alike_however_they_were_made_and_ordered_by_their_bytes() {
        let hasher = std::hash::RandomState::new();
        let texts: Vec<String> = (0..40).map(|length| "x".repeat(length)).collect();
        for (text, longer) in texts.iter().zip(&texts[1..]) {
            let carrier = Bytes::copy_from_slice(text.as_bytes());
            let key = PartitionKey::from(text.as_str());
            for other in [
                PartitionKey::from(text.clone()),
                PartitionKey::from_utf8(carrier.clone()).unwrap(),
                PartitionKey::of_slice(&carrier, 0..text.len()).unwrap(),
            ] {
                assert_eq!((&key, key.as_str()), (&other, text.as_str()));
                assert_eq!(hasher.hash_one(&key), hasher.hash_one(&other), "{text}");
            }
            let longer = PartitionKey::from(longer.as_str());
            assert!(key < longer && key != longer, "{text}");
            assert_eq!(key.is_empty(), text.is_empty());
        }
    }
}
