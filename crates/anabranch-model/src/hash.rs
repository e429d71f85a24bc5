//! The 128-bit hash key space: hash keys of records, and the ranges that shards own.

use md5::{Digest, Md5};
use std::fmt;
use std::str::FromStr;

/// A point in the hash key space, 0 to 2^128 − 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashKey(pub u128);

impl HashKey {
    /// Lowest hash key.
    pub const MIN: Self = Self(0);
    /// Highest hash key.
    pub const MAX: Self = Self(u128::MAX);

    /// Returns the hash key of a partition key, as Kinesis computes it: its MD5, read as a
    /// big-endian number.
    pub fn of_partition_key(key: &str) -> Self {
        Self(u128::from_be_bytes(Md5::digest(key.as_bytes()).into()))
    }

    /// Returns the hash key of a record: its explicit hash key, else that of its partition key.
    pub fn effective(partition_key: &str, explicit: Option<Self>) -> Self {
        explicit.unwrap_or_else(|| Self::of_partition_key(partition_key))
    }
}

/// Error: a text is not a hash key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a hash key: it must be a decimal number from 0 to 2^128-1")]
pub struct ParseHashKeyError(String);

impl FromStr for HashKey {
    type Err = ParseHashKeyError;

    /// Parses a decimal number of ASCII digits. Leading zeros are dropped, as the KPL does.
    fn from_str(text: &str) -> Result<Self, ParseHashKeyError> {
        let digits_only = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(value) if digits_only => Ok(Self(value)),
            _ => Err(ParseHashKeyError(text.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A range of hash keys, both ends inclusive. `start <= end` always holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashRange {
    start: HashKey,
    end: HashKey,
}

impl HashRange {
    /// The whole hash key space.
    pub const ALL: Self = Self { start: HashKey::MIN, end: HashKey::MAX };

    /// Creates the range from `start` to `end`, both inclusive, or returns `None` if `start` is
    /// above `end`.
    pub fn new(start: HashKey, end: HashKey) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// Returns the lowest key of the range.
    pub fn start(&self) -> HashKey {
        self.start
    }

    /// Returns the highest key of the range.
    pub fn end(&self) -> HashKey {
        self.end
    }

    /// Returns true if the range contains `key`.
    pub fn contains(&self, key: HashKey) -> bool {
        self.start <= key && key <= self.end
    }

    /// Returns true if the two ranges share a key.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Returns true if `next` begins right after this range ends.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.end.0.checked_add(1) == Some(next.start.0)
    }

    /// Splits the range in two; the second half begins at `at`. Returns `None` unless both halves
    /// contain a key.
    pub fn split_at(&self, at: HashKey) -> Option<(Self, Self)> {
        if at <= self.start || at > self.end {
            return None;
        }
        let low = Self { start: self.start, end: HashKey(at.0 - 1) };
        Some((low, Self { start: at, end: self.end }))
    }

    /// Returns the union of two adjacent ranges, or `None` if they are not adjacent.
    pub fn join(&self, other: &Self) -> Option<Self> {
        if self.is_followed_by(other) {
            Some(Self { start: self.start, end: other.end })
        } else if other.is_followed_by(self) {
            Some(Self { start: other.start, end: self.end })
        } else {
            None
        }
    }

    /// Divides the hash key space into `parts` ranges as Kinesis does for a new stream: all of one
    /// size, except that the last one takes the rest.
    pub fn divide_all(parts: u32) -> Vec<Self> {
        // One part is the whole space; its size does not fit the type.
        if parts <= 1 {
            return vec![Self::ALL];
        }
        let size = u128::MAX / u128::from(parts) + u128::from(parts.is_power_of_two());
        (0..parts)
            .map(|i| {
                let start = size * u128::from(i);
                let end = if i + 1 == parts { u128::MAX } else { start + (size - 1) };
                Self { start: HashKey(start), end: HashKey(end) }
            })
            .collect()
    }
}

impl fmt::Debug for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn partition_keys_hash_to_their_md5() {
        for (key, hash) in [
            ("a", 16_955_237_001_963_240_173_058_271_559_858_726_497),
            ("pk", 38_317_986_088_707_300_215_492_326_132_921_849_533),
            ("user-123", 250_018_372_642_977_770_877_286_195_909_578_633_128),
            ("ключ", 259_726_384_039_714_788_407_059_515_981_389_908_711),
        ] {
            assert_eq!(HashKey::of_partition_key(key), HashKey(hash), "{key}");
        }
    }

    #[test]
    fn only_decimal_numbers_of_128_bits_are_hash_keys() {
        for text in ["", "-1", "+1", " 1", "1.0", "0x10", "340282366920938463463374607431768211456"]
        {
            assert!(text.parse::<HashKey>().is_err(), "{text:?}");
        }
        assert_eq!("340282366920938463463374607431768211455".parse(), Ok(HashKey::MAX));
        assert_eq!("007".parse(), Ok(HashKey(7)));
    }

    proptest! {
        #[test]
        fn dividing_covers_every_hash_once(parts in 1u32..2_000) {
            let ranges = HashRange::divide_all(parts);
            prop_assert_eq!(ranges.len(), parts as usize);
            prop_assert_eq!(ranges[0].start(), HashKey::MIN);
            prop_assert_eq!(ranges[ranges.len() - 1].end(), HashKey::MAX);
            prop_assert!(ranges.windows(2).all(|w| w[0].is_followed_by(&w[1])));
        }

        #[test]
        fn halves_of_a_split_join_again(start: u128, end: u128, at: u128) {
            let range = HashRange::new(HashKey(start.min(end)), HashKey(start.max(end))).unwrap();
            if let Some((low, high)) = range.split_at(HashKey(at)) {
                prop_assert!(low.is_followed_by(&high) && !low.overlaps(&high));
                prop_assert_eq!(low.join(&high), Some(range));
                prop_assert_eq!(high.join(&low), Some(range));
            } else {
                prop_assert!(at <= range.start().0 || at > range.end().0);
            }
        }
    }
}
