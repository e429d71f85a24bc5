//! CBOR writers that append to a buffer.

#![expect(clippy::cast_possible_truncation, reason = "each cast is behind a check of its range")]

use super::{BREAK, TAG_TIME, major};

#[inline]
fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let major = major << 5;
    match argument {
        0..24 => out.push(major | argument as u8),
        24..0x100 => out.extend_from_slice(&[major | 0x18, argument as u8]),
        0x100..0x1_0000 => {
            out.push(major | 0x19);
            out.extend_from_slice(&(argument as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 0x1a);
            out.extend_from_slice(&(argument as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 0x1b);
            out.extend_from_slice(&argument.to_be_bytes());
        }
    }
}

/// Writes the header of a map of `count` pairs.
pub fn map(out: &mut Vec<u8>, count: usize) {
    head(out, major::MAP, count as u64);
}

/// Writes the header of an array of `count` items.
pub fn array(out: &mut Vec<u8>, count: usize) {
    head(out, major::ARRAY, count as u64);
}

/// Opens an indefinite-length map, to be ended by [`close`].
pub fn open_map(out: &mut Vec<u8>) {
    out.push(major::MAP << 5 | 31);
}

/// Opens an indefinite-length array, to be ended by [`close`].
pub fn open_array(out: &mut Vec<u8>) {
    out.push(major::ARRAY << 5 | 31);
}

/// Ends a map or array opened by [`open_map`] or [`open_array`].
pub fn close(out: &mut Vec<u8>) {
    out.push(BREAK);
}

/// Writes a text string.
#[inline]
pub fn text(out: &mut Vec<u8>, text: &str) {
    utf8(out, text.as_bytes());
}

/// Writes a text string, given as UTF-8 bytes.
#[inline]
pub fn utf8(out: &mut Vec<u8>, text: &[u8]) {
    head(out, major::TEXT, text.len() as u64);
    out.extend_from_slice(text);
}

/// Writes a byte string.
#[inline]
pub fn blob(out: &mut Vec<u8>, bytes: &[u8]) {
    blob_head(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes the header of a byte string of `length` bytes, which must follow.
#[inline]
pub fn blob_head(out: &mut Vec<u8>, length: usize) {
    head(out, major::BYTES, length as u64);
}

/// Writes a non-negative integer.
#[inline]
pub fn unsigned(out: &mut Vec<u8>, value: u64) {
    head(out, major::UNSIGNED, value);
}

/// Writes an integer.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    match u64::try_from(value) {
        Ok(value) => head(out, major::UNSIGNED, value),
        // -1 - value is the bitwise complement, which cannot overflow.
        Err(_) => head(out, major::NEGATIVE, (!value).cast_unsigned()),
    }
}

/// Writes a double.
pub fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xfb);
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes a boolean.
pub fn boolean(out: &mut Vec<u8>, value: bool) {
    out.push(if value { 0xf5 } else { 0xf4 });
}

/// Writes null.
pub fn null(out: &mut Vec<u8>) {
    out.push(0xf6);
}

/// Writes a point in time as AWS sends it: tag 1 and integer *milliseconds*, where RFC 8949 has
/// seconds.
pub fn time(out: &mut Vec<u8>, ms: i64) {
    head(out, major::TAG, TAG_TIME);
    integer(out, ms);
}

#[cfg(test)]
mod tests {
    use super::super::CborCursor;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_is_tag_one_with_milliseconds() {
        let mut out = Vec::new();
        time(&mut out, 1_603_152_823_565);
        assert_eq!(out, b"\xc1\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d");
    }

    proptest! {
        #[test]
        fn integers_come_back(value: i64) {
            let mut out = Vec::new();
            integer(&mut out, value);
            prop_assert_eq!(CborCursor::new(&out).integer(), Ok(value));
        }

        #[test]
        fn strings_come_back(words in ".{0,300}", bytes: Vec<u8>) {
            let mut out = Vec::new();
            text(&mut out, &words);
            blob(&mut out, &bytes);
            let mut cursor = CborCursor::new(&out);
            prop_assert_eq!(cursor.text().unwrap(), words);
            prop_assert_eq!(&*cursor.blob().unwrap(), &bytes[..]);
            prop_assert_eq!(cursor.finish(), Ok(()));
        }
    }
}
