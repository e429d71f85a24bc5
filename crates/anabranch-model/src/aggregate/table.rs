//! String table of an aggregate: its encoded bytes, and an index of its strings.

#![expect(clippy::cast_possible_truncation, reason = "hashing keeps the low bits on purpose")]

use super::wire::{FIELD_ROOM_BYTES, FieldTag, append_field, varint_len};

/// Maximum number of probes in a lookup. A table may hold a string twice, so stopping early costs
/// some bytes but never correctness. It also bounds the cost of keys that are chosen to collide.
const MAX_PROBES: usize = 64;

/// Minimum number of slots of a non-empty table.
const MIN_SLOTS: usize = 64;

/// The strings of one table, each once, in the order in which they were first seen.
///
/// Strings are indexed by an open-addressed hash table of their numbers. Removing the last string
/// moves no other, because all remaining strings were placed before it.
#[derive(Debug, Clone)]
pub(super) struct StringTable {
    /// Tag of the table's field.
    tag: FieldTag,
    /// Encoded strings with their tags and lengths.
    wire: Vec<u8>,
    /// Strings, by number.
    strings: Vec<TableEntry>,
    /// Hash slots: 0, or one more than the number of a string.
    slots: Vec<u32>,
}

/// One string of a table.
#[derive(Debug, Clone, Copy)]
struct TableEntry {
    /// Offset of its tag in `wire`.
    tag_at: u32,
    /// Offset of its text in `wire`.
    text_at: u32,
    /// Start of its probe sequence; also a quick test for inequality.
    hash: u32,
}

/// Result of a lookup. It fits into registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The table holds the string under this number.
    Existing(u32),
    /// The table does not hold the string.
    New {
        /// Number that the string gets when it is added.
        number: u32,
        /// Hash of the string, so that adding it need not compute it again.
        hash: u32,
    },
}

impl Lookup {
    /// Returns the string's number, current or once it is added.
    #[inline]
    pub(super) fn number(self) -> usize {
        match self {
            Self::Existing(number) | Self::New { number, .. } => number as usize,
        }
    }
}

impl StringTable {
    /// Creates an empty table for field `field`.
    pub(super) fn new(field: u32) -> Self {
        Self {
            tag: FieldTag::bytes(field),
            wire: Vec::new(),
            strings: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Returns the encoded table.
    #[inline]
    pub(super) fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// Returns the number of strings.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.strings.len()
    }

    /// Returns the string with this number.
    #[inline]
    pub(super) fn text(&self, number: usize) -> &[u8] {
        let end = self.strings.get(number + 1).map_or(self.wire.len(), |next| next.tag_at as usize);
        &self.wire[self.strings[number].text_at as usize..end]
    }

    /// Returns the encoded size of a new string of `len` bytes.
    #[inline]
    pub(super) fn added_bytes(len: usize) -> usize {
        1 + varint_len(len) + len
    }

    /// Looks up a string.
    #[inline]
    pub(super) fn find(&self, text: &[u8]) -> Lookup {
        let hash = scatter(text);
        for slot in self.walk(hash) {
            let Some(number) = self.slots[slot].checked_sub(1) else { break };
            let place = number as usize;
            if self.strings[place].hash == hash && self.text(place) == text {
                return Lookup::Existing(number);
            }
        }
        Lookup::New { number: offset(self.len()), hash }
    }

    /// Adds a string that [`StringTable::find`] reported as new, with the hash that it returned.
    #[inline]
    pub(super) fn push(&mut self, text: &[u8], hash: u32) {
        if (self.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let tag_at = offset(self.wire.len());
        self.wire.reserve(FIELD_ROOM_BYTES + text.len());
        append_field(&mut self.wire, self.tag, text.len());
        let text_at = offset(self.wire.len());
        self.wire.extend_from_slice(text);
        self.strings.push(TableEntry { tag_at, text_at, hash });
        self.occupy(self.len() - 1);
    }

    /// Removes the last string.
    pub(super) fn pop(&mut self) {
        let number = offset(self.len());
        let Some(last) = self.strings.pop() else { return };
        if let Some(slot) = self.walk(last.hash).find(|slot| self.slots[*slot] == number) {
            self.slots[slot] = 0;
        }
        self.wire.truncate(last.tag_at as usize);
    }

    /// Removes all strings and keeps the memory.
    pub(super) fn clear(&mut self) {
        if self.strings.is_empty() {
            return;
        }
        self.wire.clear();
        self.strings.clear();
        self.slots.fill(0);
    }

    /// Doubles the slots and inserts the strings again, in order.
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(MIN_SLOTS);
        self.slots.clear();
        self.slots.resize(slots, 0);
        for number in 0..self.len() {
            self.occupy(number);
        }
    }

    /// Stores a string's number in the first free slot of its probe sequence, if there is one.
    fn occupy(&mut self, number: usize) {
        let hash = self.strings[number].hash;
        if let Some(slot) = self.walk(hash).find(|slot| self.slots[*slot] == 0) {
            self.slots[slot] = offset(number + 1);
        }
    }

    /// Returns the slots that may hold a string with this hash, in probe order.
    #[inline]
    fn walk(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slots.len();
        let probes = MAX_PROBES.min(slots);
        (0..probes).map(move |probe| (hash as usize + probe) & (slots - 1))
    }
}

/// Converts an offset. The builder limits the size of a Kinesis record far below 4 GiB.
#[inline]
fn offset(place: usize) -> u32 {
    u32::try_from(place).expect("the builder refuses records that would take it past its maximum")
}

/// Returns the hash of `text`: eight bytes at a time, each folded from a wide product.
#[inline]
fn scatter(text: &[u8]) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |value: u64| {
        let wide = u128::from(value) * u128::from(ODD);
        (wide >> 64) as u64 ^ wide as u64
    };
    let mut hash = ODD ^ text.len() as u64;
    let mut rest = text;
    while let Some((chunk, others)) = rest.split_first_chunk()
        && !others.is_empty()
    {
        hash = fold(hash ^ u64::from_le_bytes(*chunk));
        rest = others;
    }
    // The last eight bytes may overlap the previous ones: that is cheaper than byte by byte.
    let last = text.last_chunk().map(|last| u64::from_le_bytes(*last));
    let few = || text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    fold(hash ^ last.unwrap_or_else(few)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Add(String),
        TakeBack,
    }

    proptest! {
        // Few different strings, so that they repeat; enough steps to grow and to shrink again.
        #[test]
        fn a_table_holds_each_string_once_in_first_seen_order(
            steps in proptest::collection::vec(
                prop_oneof![
                    4 => "[a-f]{0,3}".prop_map(Step::Add),
                    1 => Just(Step::TakeBack),
                ], 0..600),
        ) {
            let mut table = StringTable::new(1);
            let mut model: Vec<String> = Vec::new();
            for step in steps {
                match step {
                    Step::Add(text) => {
                        let want = model.iter().position(|held| *held == text);
                        let found = table.find(text.as_bytes());
                        prop_assert_eq!(found.number(), want.unwrap_or(model.len()));
                        prop_assert_eq!(matches!(found, Lookup::Existing(_)), want.is_some());
                        if let Lookup::New { hash, .. } = found {
                            let before = table.wire().len();
                            table.push(text.as_bytes(), hash);
                            let added = table.wire().len() - before;
                            prop_assert_eq!(added, StringTable::added_bytes(text.len()));
                            model.push(text);
                        }
                    }
                    Step::TakeBack => {
                        model.pop();
                        table.pop();
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for (number, text) in model.iter().enumerate() {
                prop_assert_eq!(table.text(number), text.as_bytes());
            }
        }
    }

    #[test]
    fn strings_that_collide_are_kept_and_only_lose_their_sharing() {
        // Strings with the same probe sequence in the smallest table.
        let colliding: Vec<[u8; 4]> = (0_u32..)
            .map(u32::to_be_bytes)
            .filter(|text| scatter(text).is_multiple_of(4096))
            .take(MAX_PROBES + 10)
            .collect();
        let mut table = StringTable::new(1);
        for text in &colliding {
            let Lookup::New { hash, .. } = table.find(text) else { panic!("not there yet") };
            table.push(text, hash);
        }
        assert_eq!(table.find(&colliding[0]), Lookup::Existing(0));
        assert_eq!(
            table.find(&colliding[MAX_PROBES - 1]),
            Lookup::Existing(offset(MAX_PROBES - 1))
        );
        let beyond = &colliding[MAX_PROBES + 5];
        assert_eq!(table.text(MAX_PROBES + 5), beyond);
        assert_eq!(table.find(beyond).number(), colliding.len());
        while table.len() > 0 {
            table.pop();
        }
        assert!(table.slots.iter().all(|slot| *slot == 0), "a slot outlived its string");
    }
    #[test]
    fn different_strings_with_one_hash_stay_different() {
        let mut seen = std::collections::HashMap::new();
        let (one, other) = (0_u32..)
            .map(u32::to_be_bytes)
            .find_map(|text| Some((seen.insert(scatter(&text), text)?, text)))
            .expect("32 bits collide long before the numbers end");
        let mut table = StringTable::new(1);
        table.push(&one, scatter(&one));
        assert_eq!(table.find(&other), Lookup::New { number: 1, hash: scatter(&one) });
        table.push(&other, scatter(&other));
        assert_eq!(
            (table.find(&one), table.find(&other)),
            (Lookup::Existing(0), Lookup::Existing(1))
        );
    }
}
