//! JSON for the hot operations: strings borrowed from a body, and hand-written strings, numbers and
//! times.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A string that borrows from the body unless it contains escapes. (`Option<Cow<str>>` would always
/// copy.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BorrowedText<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for BorrowedText<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct BorrowVisitor;
        impl<'de> Visitor<'de> for BorrowVisitor {
            type Value = BorrowedText<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(BorrowedText(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(BorrowedText(Cow::Owned(text.to_owned())))
            }
        }
        from.deserialize_str(BorrowVisitor)
    }
}

/// True for the bytes that a JSON string must escape.
const ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut byte = 0;
    while byte < b' ' as usize {
        escaped[byte] = true;
        byte += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped
};

/// Returns true if a text contains characters that must be escaped. Avoids a branch per byte,
/// because most texts contain none.
pub(crate) fn escapes(text: &[u8]) -> bool {
    text.iter().fold(false, |any, byte| any | ESCAPED[usize::from(*byte)])
}

/// Writes a quoted string.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    if escapes(text.as_bytes()) {
        escaped(out, text.as_bytes());
    } else {
        out.extend_from_slice(text.as_bytes());
    }
    out.push(b'"');
}

/// Writes UTF-8 text with escapes, without quotes.
pub(crate) fn escaped(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..b' ' => {
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[high], HEX[low]]);
            }
            _ => out.push(byte),
        }
    }
}

/// Writes an integer.
pub(crate) fn number(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(value % 10).expect("a digit");
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes milliseconds since 1970 as JSON represents them: seconds with a fraction.
pub(crate) fn time(out: &mut Vec<u8>, ms: u64) {
    number(out, ms / 1000);
    let fraction = 1000 + ms % 1000;
    let dot = out.len();
    number(out, fraction);
    // The leading 1 kept the zeros of the fraction. The decimal point replaces it.
    out[dot] = b'.';
}

/// Writes the id of a shard, such as `shardId-000000000012`, without quotes.
pub(crate) fn shard_id(out: &mut Vec<u8>, index: u32) {
    let mut id = *b"shardId-000000000000";
    let (mut rest, mut at) = (index, id.len());
    while rest > 0 {
        at -= 1;
        id[at] += u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
    }
    out.extend_from_slice(&id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::ids::ShardId;
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn times_are_seconds_with_three_digits_of_fraction() {
        for (ms, text) in [
            (0, "0.000"),
            (7, "0.007"),
            (1_603_152_823_565, "1603152823.565"),
            (1_603_152_823_050, "1603152823.050"),
        ] {
            assert_eq!(written(|out| time(out, ms)), text);
        }
    }

    #[test]
    fn a_text_borrows_unless_it_has_escapes() {
        for (json, text, borrowed) in
            [(r#""key""#, "key", true), (r#""a\"b\u00e9""#, "a\"bé", false), (r#""é""#, "é", true)]
        {
            let BorrowedText(got) = serde_json::from_str(json).unwrap();
            assert_eq!((&*got, matches!(got, Cow::Borrowed(_))), (text, borrowed), "{json}");
        }
    }

    proptest! {
        #[test]
        fn strings_are_read_back_by_serde(text in any::<String>()) {
            let json = written(|out| string(out, &text));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }

        #[test]
        fn numbers_and_shard_ids_have_all_their_digits(value: u64, index: u32) {
            prop_assert_eq!(written(|out| number(out, value)), value.to_string());
            let id = ShardId::from_index(index);
            prop_assert_eq!(written(|out| shard_id(out, index)), id.as_str());
        }
    }
}
