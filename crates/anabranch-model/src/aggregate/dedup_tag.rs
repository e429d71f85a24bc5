//! Deduplication tag of an aggregate: its producer, and its number among all aggregates of that
//! producer.
//!
//! A producer whose reply was lost sends the same bytes again, so they may be in the shard twice.
//! The tag lets a reader recognise the duplicate. It is stored in the `tags` field of the last user
//! record, which the KPL defines and other readers ignore.

/// Key of the tag.
const KEY: &[u8] = b"anabranch";
/// Length of the value: two 64-bit numbers in hexadecimal.
const VALUE_BYTES: usize = 32;
/// Tags and lengths of the record's field and of the two fields in it.
const FIELD: [u8; 2] = [4 << 3 | 2, 45];
const KEY_FIELD: [u8; 2] = [1 << 3 | 2, 9];
const VALUE_FIELD: [u8; 2] = [2 << 3 | 2, 32];

/// Size of the field in bytes.
pub(super) const FIELD_BYTES: usize = 2 + FIELD[1] as usize;
/// Maximum size that a deduplication tag adds to an aggregate: the field, and a longer length
/// prefix of its record.
pub const MARK_MAX_BYTES: usize = FIELD_BYTES + 1;

const _: () = {
    assert!(KEY_FIELD[1] as usize == KEY.len() && VALUE_FIELD[1] as usize == VALUE_BYTES);
    assert!(FIELD[1] as usize == 2 + KEY.len() + 2 + VALUE_BYTES);
};

/// Identity of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupTag {
    /// Producer number, unique among all producers and across restarts.
    pub producer: u64,
    /// Number of the aggregate among all of this producer.
    pub container: u64,
}

impl DedupTag {
    /// Returns the field of a record that carries the tag.
    pub(super) fn field(self) -> [u8; FIELD_BYTES] {
        let value = format!("{:016x}{:016x}", self.producer, self.container);
        let parts = [&FIELD[..], &KEY_FIELD, KEY, &VALUE_FIELD, value.as_bytes()];
        let mut field = [0; FIELD_BYTES];
        field.copy_from_slice(&parts.concat());
        field
    }

    /// Parses a tag. Returns `None` if it is not a deduplication tag.
    pub(super) fn read(key: &[u8], value: &[u8]) -> Option<Self> {
        let is_mark = key == KEY && value.len() == VALUE_BYTES;
        let digits = value.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if !is_mark || !digits {
            return None;
        }
        let (producer, container) = value.split_at(VALUE_BYTES / 2);
        let number = |digits| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        Some(Self { producer: number(producer)?, container: number(container)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_others_are_no_marks() {
        let digits = "0123456789abcdef0123456789abcdef";
        let mark = DedupTag { producer: 0x0123_4567_89ab_cdef, container: 0x0123_4567_89ab_cdef };
        for (key, value, want) in [
            ("anabranch", digits, Some(mark)),
            ("anabranch", &digits[1..], None),
            ("anabranch", "0123456789ABCDEF0123456789abcdef", None),
            ("anabranch", "+123456789abcdef0123456789abcdef", None),
            ("anabranch", "", None),
            ("trace", digits, None),
        ] {
            assert_eq!(DedupTag::read(key.as_bytes(), value.as_bytes()), want, "{key} {value}");
        }
    }
}
