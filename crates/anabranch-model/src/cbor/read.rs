//! A cursor over one CBOR document. It borrows from the input and never panics.

use std::borrow::Cow;

use super::{BREAK, MAX_DEPTH, MalformedCbor, major};

const CUT: MalformedCbor = MalformedCbor("the CBOR body ends too early");

/// A position in a CBOR document.
#[derive(Debug, Clone)]
pub struct CborCursor<'a> {
    bytes: &'a [u8],
    /// Offset of the next item.
    at: usize,
}

/// Remaining items of an array or map: a count, or `None` up to the break byte.
#[derive(Debug)]
pub struct ContainerItems(Option<u64>);

impl ContainerItems {
    /// Returns a capacity to reserve: the count in the header, but at most `most`.
    pub fn hint(&self, most: usize) -> usize {
        self.0.map_or(0, |count| usize::try_from(count).unwrap_or(most).min(most))
    }
}

/// The decoded head of an item: its first byte and its argument.
#[derive(Debug, Clone, Copy)]
pub struct ItemHead {
    /// Major type.
    pub major: u8,
    /// Low five bits. 31 means indefinite length.
    pub info: u8,
    /// Argument in the first byte or in the bytes after it.
    pub argument: u64,
}

impl ItemHead {
    fn is_indefinite(self) -> bool {
        self.info == 31
    }
}

impl<'a> CborCursor<'a> {
    /// Creates a cursor at the start of a document.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the next byte without consuming it.
    #[inline]
    pub fn peek(&self) -> Result<u8, MalformedCbor> {
        self.bytes.get(self.at).copied().ok_or(CUT)
    }

    #[inline]
    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedCbor> {
        let end = self.at.checked_add(count).ok_or(CUT)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT)?;
        self.at = end;
        Ok(taken)
    }

    /// Reads the head of the next item.
    #[inline]
    pub fn head(&mut self) -> Result<ItemHead, MalformedCbor> {
        let first = self.peek()?;
        self.at += 1;
        let (major, info) = (first >> 5, first & 31);
        let argument = match info {
            0..=23 => u64::from(info),
            24..=27 => {
                let digits = self.take(1 << (info - 24))?;
                digits.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
            }
            31 => 0,
            _ => return Err(MalformedCbor("a reserved CBOR length")),
        };
        let may_be_indefinite =
            matches!(major, major::BYTES | major::TEXT | major::ARRAY | major::MAP | major::SIMPLE);
        if info == 31 && !may_be_indefinite {
            return Err(MalformedCbor("a CBOR number or tag without a length"));
        }
        Ok(ItemHead { major, info, argument })
    }

    /// Consumes a null (or undefined) if it is next. Returns true if it was.
    #[inline]
    pub fn null(&mut self) -> Result<bool, MalformedCbor> {
        let null = matches!(self.peek()?, 0xf6 | 0xf7);
        self.at += usize::from(null);
        Ok(null)
    }

    /// Returns the offset of the next item from the start of the document, in bytes.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns true at the end of the document.
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Returns true if null (or undefined) is next.
    #[inline]
    pub fn is_at_null(&self) -> bool {
        matches!(self.bytes.get(self.at), Some(0xf6 | 0xf7))
    }

    /// Reads a tag if one is next.
    pub fn tag(&mut self) -> Result<Option<u64>, MalformedCbor> {
        if self.peek()? >> 5 == major::TAG { Ok(Some(self.head()?.argument)) } else { Ok(None) }
    }

    /// Reads a number, integer or float.
    #[expect(clippy::cast_precision_loss, reason = "a float is what the caller asked for")]
    pub fn number(&mut self) -> Result<f64, MalformedCbor> {
        if self.peek()? >> 5 != major::SIMPLE {
            return Ok(self.integer()? as f64);
        }
        let head = self.head()?;
        match head.info {
            25 => Ok(half(head.argument)),
            26 => {
                let bits = u32::try_from(head.argument);
                let bits = bits.map_err(|_| MalformedCbor("a number too large"))?;
                Ok(f64::from(f32::from_bits(bits)))
            }
            27 => Ok(f64::from_bits(head.argument)),
            _ => Err(MalformedCbor("a value that is not a number")),
        }
    }

    /// Reads a boolean.
    pub fn boolean(&mut self) -> Result<bool, MalformedCbor> {
        match self.head()? {
            ItemHead { major: major::SIMPLE, info: 20, .. } => Ok(false),
            ItemHead { major: major::SIMPLE, info: 21, .. } => Ok(true),
            _ => Err(MalformedCbor("a value that is not a boolean")),
        }
    }

    /// Reads a point in time, in milliseconds since the Unix epoch. AWS sends integer milliseconds
    /// under tag 1, where RFC 8949 has seconds, and some emulators follow the RFC. An integer that
    /// would be within about the first three years in milliseconds is therefore treated as seconds.
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, it never wraps")]
    pub fn time_ms(&mut self) -> Result<i64, MalformedCbor> {
        const SECONDS_BELOW: u64 = 100_000_000_000;
        self.tag()?;
        if self.peek()? >> 5 == major::SIMPLE {
            return Ok((self.number()? * 1000.0).round() as i64);
        }
        let value = self.integer()?;
        if value.unsigned_abs() < SECONDS_BELOW { Ok(value * 1000) } else { Ok(value) }
    }

    /// Reads an integer.
    #[inline]
    pub fn integer(&mut self) -> Result<i64, MalformedCbor> {
        let head = self.head()?;
        let value =
            i64::try_from(head.argument).map_err(|_| MalformedCbor("a number too large"))?;
        match head.major {
            major::UNSIGNED => Ok(value),
            major::NEGATIVE => Ok(-1 - value),
            _ => Err(MalformedCbor("a value that is not a whole number")),
        }
    }

    /// Reads a text string; borrowed unless it is chunked.
    #[inline]
    pub fn text(&mut self) -> Result<Cow<'a, str>, MalformedCbor> {
        const NOT_UTF8: MalformedCbor = MalformedCbor("a CBOR text that is not UTF-8");
        match self.string(major::TEXT)? {
            Cow::Borrowed(bytes) => {
                std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| NOT_UTF8)
            }
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| NOT_UTF8),
        }
    }

    /// Reads the bytes of a text string without checking UTF-8, which is enough to compare names
    /// and digits.
    #[inline]
    pub fn text_bytes(&mut self) -> Result<Cow<'a, [u8]>, MalformedCbor> {
        self.string(major::TEXT)
    }

    /// Reads a text string or null.
    pub fn optional_text(&mut self) -> Result<Option<Cow<'a, str>>, MalformedCbor> {
        if self.null()? { Ok(None) } else { self.text().map(Some) }
    }

    /// Reads a byte string; borrowed unless it is chunked.
    #[inline]
    pub fn blob(&mut self) -> Result<Cow<'a, [u8]>, MalformedCbor> {
        self.string(major::BYTES)
    }

    #[inline]
    fn string(&mut self, wanted: u8) -> Result<Cow<'a, [u8]>, MalformedCbor> {
        let head = self.head()?;
        if head.major != wanted {
            return Err(MalformedCbor("a value that is not a string of the expected kind"));
        }
        if !head.is_indefinite() {
            return Ok(Cow::Borrowed(self.take_string(head)?));
        }
        let mut whole = Vec::new();
        while !self.at_break()? {
            let chunk = self.head()?;
            if chunk.major != wanted || chunk.is_indefinite() {
                return Err(MalformedCbor("a CBOR string with a chunk of another type"));
            }
            whole.extend_from_slice(self.take_string(chunk)?);
        }
        Ok(Cow::Owned(whole))
    }

    #[inline]
    fn take_string(&mut self, head: ItemHead) -> Result<&'a [u8], MalformedCbor> {
        self.take(usize::try_from(head.argument).map_err(|_| CUT)?)
    }

    /// Consumes the break byte if it is next. Returns true if it was.
    #[inline]
    fn at_break(&mut self) -> Result<bool, MalformedCbor> {
        let found = self.peek()? == BREAK;
        self.at += usize::from(found);
        Ok(found)
    }

    /// Enters a map.
    #[inline]
    pub fn map(&mut self) -> Result<ContainerItems, MalformedCbor> {
        self.container(major::MAP)
    }

    /// Enters an array.
    #[inline]
    pub fn array(&mut self) -> Result<ContainerItems, MalformedCbor> {
        self.container(major::ARRAY)
    }

    #[inline]
    fn container(&mut self, wanted: u8) -> Result<ContainerItems, MalformedCbor> {
        let head = self.head()?;
        if head.major != wanted {
            return Err(MalformedCbor("a value that is not the expected map or list"));
        }
        Ok(ContainerItems((!head.is_indefinite()).then_some(head.argument)))
    }

    /// Returns true while the array or map has another item (for a map: another key and value).
    #[inline]
    pub fn more(&mut self, items: &mut ContainerItems) -> Result<bool, MalformedCbor> {
        match &mut items.0 {
            None => Ok(!self.at_break()?),
            Some(0) => Ok(false),
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
        }
    }

    /// Skips one item of any type.
    pub fn skip(&mut self) -> Result<(), MalformedCbor> {
        self.skip_within(MAX_DEPTH)
    }

    fn skip_within(&mut self, depth: u8) -> Result<(), MalformedCbor> {
        let depth = depth.checked_sub(1).ok_or(MalformedCbor("CBOR nested too deep"))?;
        let (before, head) = (self.at, self.head()?);
        match head.major {
            major::BYTES | major::TEXT => {
                self.at = before;
                self.string(head.major)?;
            }
            major::ARRAY | major::MAP => {
                self.at = before;
                let mut items = self.container(head.major)?;
                while self.more(&mut items)? {
                    self.skip_within(depth)?;
                    if head.major == major::MAP {
                        self.skip_within(depth)?;
                    }
                }
            }
            major::TAG => self.skip_within(depth)?,
            major::SIMPLE if head.is_indefinite() => {
                return Err(MalformedCbor("an unexpected CBOR break"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the document has no trailing bytes.
    pub fn finish(&self) -> Result<(), MalformedCbor> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(MalformedCbor("bytes after the body"))
        }
    }
}

/// Returns the value of a 16-bit float (RFC 8949, appendix D).
pub(super) fn half(bits: u64) -> f64 {
    let exponent = i32::from((bits >> 10 & 0x1f) as u8);
    let mantissa = f64::from((bits & 0x3ff) as u16);
    let magnitude = match exponent {
        0 => mantissa * 2_f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (mantissa + 1024.0) * 2_f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(bytes: &[u8]) -> Option<String> {
        let mut cursor = CborCursor::new(bytes);
        let text = cursor.text().ok()?.into_owned();
        cursor.finish().ok().map(|()| text)
    }

    #[test]
    fn a_text_is_read_whole_or_in_chunks_and_nothing_else_is_a_text() {
        for (bytes, text) in [
            (&b"\x60"[..], Some("")),
            (b"\x62ab", Some("ab")),
            (b"\x78\x02ab", Some("ab")),
            (b"\x7f\x61a\x61b\xff", Some("ab")),
            (b"\x7f\xff", Some("")),
            (b"\x42ab", None),
            (b"\x62a", None),
            (b"\x61\xff", None),
            (b"\x7f\x41a\xff", None),
            (b"\x7f\x7f\xff\xff", None),
            (b"\x7b\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"\x7c", None),
            (b"\x62abc", None),
            (b"", None),
        ] {
            assert_eq!(text_of(bytes).as_deref(), text, "{bytes:x?}");
        }
    }

    #[test]
    fn integers_keep_their_sign_and_refuse_what_does_not_fit() {
        for (bytes, integer) in [
            (&b"\x00"[..], Ok(0)),
            (b"\x17", Ok(23)),
            (b"\x18\xff", Ok(255)),
            (b"\x19\x01\x00", Ok(256)),
            (b"\x1a\x00\x01\x00\x00", Ok(65_536)),
            (b"\x1b\x7f\xff\xff\xff\xff\xff\xff\xff", Ok(i64::MAX)),
            (b"\x20", Ok(-1)),
            (b"\x3b\x7f\xff\xff\xff\xff\xff\xff\xff", Ok(i64::MIN)),
            (b"\x1b\x80\x00\x00\x00\x00\x00\x00\x00", Err(())),
            (b"\x1f", Err(())),
            (b"\xf6", Err(())),
            (b"\x61a", Err(())),
        ] {
            assert_eq!(CborCursor::new(bytes).integer().map_err(|_| ()), integer, "{bytes:x?}");
        }
    }

    #[test]
    fn skipping_passes_over_exactly_one_item() {
        for bytes in [
            &b"\x00"[..],
            b"\x83\x01\x02\x03",
            b"\x9f\x01\x02\xff",
            b"\xa1\x61a\x82\x01\xf6",
            b"\xbf\x61a\xc1\x1a\x00\x00\x00\x01\xff",
            b"\xfb\x40\x09\x21\xfb\x54\x44\x2d\x18",
            b"\x5f\x41a\x41b\xff",
        ] {
            let mut cursor = CborCursor::new(bytes);
            assert_eq!(cursor.skip().and_then(|()| cursor.finish()), Ok(()), "{bytes:x?}");
        }
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused_and_not_followed() {
        for opener in [0x81, 0x9f, 0xc1] {
            let deep = vec![opener; 100_000];
            assert_eq!(CborCursor::new(&deep).skip(), Err(MalformedCbor("CBOR nested too deep")));
        }
    }

    #[test]
    fn a_time_is_milliseconds_as_aws_has_it_or_seconds_as_the_rfc_has_it() {
        for (bytes, ms) in [
            (&b"\xc1\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d"[..], Ok(1_603_152_823_565)),
            (b"\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d", Ok(1_603_152_823_565)),
            (b"\xc1\x1a\x5f\x8e\x2b\xb7", Ok(1_603_152_823_000)),
            (b"\xc1\xfb\x41\xd7\xe3\x8a\xed\xe4\x28\xf6", Ok(1_603_152_823_565)),
            (b"\xc1\x00", Ok(0)),
            (b"\xc1\x20", Ok(-1_000)),
            (b"\xc1\x3b\x7f\xff\xff\xff\xff\xff\xff\xff", Ok(i64::MIN)),
            (b"\xc1\x1b\x7f\xff\xff\xff\xff\xff\xff\xff", Ok(i64::MAX)),
            (b"\xc1\x61a", Err(())),
            (b"\xc1\xf6", Err(())),
        ] {
            assert_eq!(CborCursor::new(bytes).time_ms().map_err(|_| ()), ms, "{bytes:x?}");
        }
    }
}
