//! The subset of the protobuf wire format that aggregates need.
//!
//! Reading follows the Java library that KCL uses, because a successful parse decides if a record
//! is deaggregated. Unknown fields and groups are skipped, and a known field with another wire type
//! counts as unknown.

#![expect(clippy::cast_possible_truncation, reason = "the format keeps low bits on purpose")]

/// Maximum size of a varint in bytes.
pub(super) const VARINT_MAX_BYTES: usize = 10;

/// Maximum nesting depth of messages and groups.
const MAX_DEPTH: usize = 100;

/// Returns the size of `value` as a varint, in bytes.
#[inline]
pub(super) fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Writes `value` as a varint to the front of `out`. Returns the number of bytes written.
#[inline]
pub(super) fn write_varint(out: &mut [u8], mut value: usize) -> usize {
    let mut at = 0;
    while value >= 0x80 {
        out[at] = (value & 0x7f) as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = value as u8;
    at + 1
}

/// Spare capacity that [`append_field`] needs, in bytes.
pub(super) const FIELD_ROOM_BYTES: usize = size_of::<u64>();

/// Appends a varint field, or the tag and length of a length-delimited field. Values must be below
/// 2^28. Copies a whole register and truncates the excess, which is faster than copying the exact
/// number of bytes.
#[inline]
pub(super) fn append_field(out: &mut Vec<u8>, tag: FieldTag, value: usize) {
    let value = value as u64;
    let (varint, len) = if value < 1 << 7 {
        (value, 1)
    } else if value < 1 << 14 {
        (value & 0x7f | 0x80 | value >> 7 << 8, 2)
    } else {
        long_varint(value)
    };
    let end = out.len() + 1 + len;
    out.extend_from_slice(&(varint << 8 | u64::from(tag.byte())).to_le_bytes());
    out.truncate(end);
}

/// Returns a varint of three or four bytes, and its length.
fn long_varint(value: u64) -> (u64, usize) {
    assert!(value < 1 << 28, "records and tables of strings are shorter");
    let sevens = |place: u32| (value >> (7 * place) & 0x7f) << (8 * place);
    let varint = sevens(0) | sevens(1) | sevens(2) | sevens(3);
    if value < 1 << 21 { (varint | 0x8080, 3) } else { (varint | 0x0080_8080, 4) }
}

/// Error: the bytes are not a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedMessage;

/// Tag of a field: its number and wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldTag(u32);

impl FieldTag {
    /// Returns the tag of a varint field.
    pub(super) const fn varint(field: u32) -> Self {
        Self(field << 3)
    }

    /// Returns the tag of a length-delimited field: bytes, a string or a message.
    pub(super) const fn bytes(field: u32) -> Self {
        Self(field << 3 | 2)
    }

    /// Returns the tag as its single byte on the wire.
    #[inline]
    pub(super) const fn byte(self) -> u8 {
        assert!(self.0 < 0x80);
        self.0 as u8
    }

    fn field(self) -> u32 {
        self.0 >> 3
    }
}

/// Reads the fields of one message.
pub(super) struct MessageReader<'a> {
    /// Buffer that the offsets refer to, up to the end of this message.
    buffer: &'a [u8],
    /// Offset of the next field.
    at: usize,
    /// Number of messages that enclose this one.
    depth: usize,
}

/// A range of offsets in the buffer.
pub(super) type Span = std::ops::Range<usize>;

impl<'a> MessageReader<'a> {
    /// Creates a reader of the message in `span` of `buffer`.
    #[inline]
    pub(super) fn new(buffer: &'a [u8], span: Span) -> Self {
        debug_assert!(span.start <= span.end);
        Self { buffer: &buffer[..span.end], at: span.start, depth: 0 }
    }

    /// Creates a reader of the message in a field of this one.
    #[inline]
    pub(super) fn nested(&self, span: Span) -> Self {
        Self { depth: self.depth + 1, ..MessageReader::new(self.buffer, span) }
    }

    /// Reads the next field's tag; `None` at the end of the message.
    #[inline]
    pub(super) fn tag(&mut self) -> Result<Option<FieldTag>, MalformedMessage> {
        if self.at == self.buffer.len() {
            return Ok(None);
        }
        // Java reads a varint of any width here and keeps its low 32 bits.
        let tag = FieldTag(self.varint()? as u32);
        if tag.field() == 0 { Err(MalformedMessage) } else { Ok(Some(tag)) }
    }

    /// Reads a varint. Bits above the 64th are dropped; an eleventh byte is an error.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, MalformedMessage> {
        // Most varints are tags, short lengths or low table indices, and have one byte.
        match self.buffer.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, MalformedMessage> {
        let bytes = &self.buffer[self.at..];
        let mut value = 0;
        for (i, byte) in bytes.iter().take(VARINT_MAX_BYTES).enumerate() {
            value |= u64::from(byte & 0x7f) << (i * 7);
            if *byte < 0x80 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(MalformedMessage)
    }

    /// Reads the span of a length-delimited field.
    #[inline]
    pub(super) fn bytes(&mut self) -> Result<Span, MalformedMessage> {
        // Java keeps the low 32 bits and interprets them as signed.
        let len = i32::try_from(self.varint()? as u32).map_err(|_| MalformedMessage)?;
        let len = usize::try_from(len).map_err(|_| MalformedMessage)?;
        self.take(len)
    }

    /// Skips the value of an unknown field.
    pub(super) fn skip(&mut self, tag: FieldTag) -> Result<(), MalformedMessage> {
        match tag.0 & 7 {
            0 => self.varint().map(drop),
            1 => self.take(8).map(drop),
            2 => self.bytes().map(drop),
            3 => self.skip_group(tag.field()),
            5 => self.take(4).map(drop),
            // 4 ends a group that never began; 6 and 7 do not exist.
            _ => Err(MalformedMessage),
        }
    }

    /// Skips a group up to its end. Uses an explicit stack, so that input cannot exhaust the call
    /// stack.
    fn skip_group(&mut self, field: u32) -> Result<(), MalformedMessage> {
        let mut open = [0; MAX_DEPTH];
        let room = MAX_DEPTH.saturating_sub(self.depth);
        let mut depth = 0;
        let mut entering = Some(field);
        loop {
            if let Some(field) = entering.take() {
                if depth == room {
                    return Err(MalformedMessage);
                }
                open[depth] = field;
                depth += 1;
            }
            let tag = self.tag()?.ok_or(MalformedMessage)?;
            match tag.0 & 7 {
                3 => entering = Some(tag.field()),
                4 if open[depth - 1] != tag.field() => return Err(MalformedMessage),
                4 => depth -= 1,
                _ => self.skip(tag)?,
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Returns the number of bytes left in the message.
    pub(super) fn left(&self) -> usize {
        self.buffer.len() - self.at
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<Span, MalformedMessage> {
        if len > self.left() {
            return Err(MalformedMessage);
        }
        let start = self.at;
        self.at += len;
        Ok(start..self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Skips every field of `bytes` as unknown.
    fn skim(bytes: &[u8]) -> Result<usize, MalformedMessage> {
        let mut reader = MessageReader::new(bytes, 0..bytes.len());
        let mut fields = 0;
        while let Some(tag) = reader.tag()? {
            reader.skip(tag)?;
            fields += 1;
        }
        Ok(fields)
    }

    #[test]
    fn a_field_is_its_tag_and_its_varint() {
        let edges = (0..28).flat_map(|bit| [1 << bit, (1 << bit) - 1, (1 << bit) + 5]);
        for value in edges.chain([100, 300, (1 << 28) - 1]) {
            let mut out = vec![7];
            append_field(&mut out, FieldTag::bytes(3), value);
            let mut varint = [0; VARINT_MAX_BYTES];
            let len = write_varint(&mut varint, value);
            assert_eq!(out, [&[7, 0x1a], &varint[..len]].concat(), "{value}");
        }
    }

    #[test]
    fn unknown_fields_are_skipped_and_broken_ones_are_malformed() {
        let check = |bytes: &[u8], want| assert_eq!(skim(bytes), want, "{bytes:02x?}");
        check(&[], Ok(0));
        check(&[0x78, 0x05], Ok(1));
        check(&[0x79, 1, 2, 3, 4, 5, 6, 7, 8], Ok(1));
        check(&[0x79, 1, 2, 3, 4, 5, 6, 7], Err(MalformedMessage));
        check(&[0x7d, 1, 2, 3, 4, 0x78, 0], Ok(2));
        check(&[0x7d, 1, 2, 3], Err(MalformedMessage));
        check(&[0x7a, 2, 9, 9], Ok(1));
        check(&[0x7a, 3, 9, 9], Err(MalformedMessage));
        check(&[0x7a, 0xff, 0xff, 0xff, 0xff, 0x0f], Err(MalformedMessage));
        // A group, a nested group, the wrong end, no end, an end without a start.
        check(&[0x7b, 0x78, 1, 0x7c], Ok(1));
        check(&[0x7b, 0x73, 0x74, 0x7c], Ok(1));
        check(&[0x7b, 0x73, 0x7c, 0x74], Err(MalformedMessage));
        check(&[0x7b, 0x78, 1], Err(MalformedMessage));
        check(&[0x7c], Err(MalformedMessage));
        check(&[0x7e, 0], Err(MalformedMessage));
        check(&[0x7f, 0], Err(MalformedMessage));
        // Field number 0.
        check(&[0x00], Err(MalformedMessage));
        check(&[0x02, 0], Err(MalformedMessage));
    }

    #[test]
    fn groups_nest_a_hundred_deep_and_no_deeper() {
        let nest = |depth| [vec![0x7b; depth], vec![0x7c; depth]].concat();
        assert_eq!(skim(&nest(100)), Ok(1));
        assert_eq!(skim(&nest(101)), Err(MalformedMessage));
        assert_eq!(skim(&nest(1_000_000)), Err(MalformedMessage));
    }

    #[test]
    fn a_varint_ends_within_ten_bytes() {
        let read = |bytes: &[u8]| MessageReader::new(bytes, 0..bytes.len()).varint();
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read(&max), Ok(u64::MAX));
        assert_eq!(read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Ok(0));
        assert_eq!(read(&[0x80; 10]), Err(MalformedMessage));
        let eleven = [[0x80; 10].as_slice(), &[0]].concat();
        assert_eq!(read(&eleven), Err(MalformedMessage));
        assert_eq!(read(&[0x80]), Err(MalformedMessage));
        assert_eq!(read(&[]), Err(MalformedMessage));
    }

    proptest! {
        #[test]
        fn a_varint_comes_back_and_its_length_was_known(bits in 0u32..64, low: u64) {
            let value = usize::try_from((1 << bits) | (low & ((1 << bits) - 1))).unwrap();
            let mut out = [0; VARINT_MAX_BYTES];
            let len = write_varint(&mut out, value);
            prop_assert_eq!(len, varint_len(value));
            prop_assert_eq!(MessageReader::new(&out, 0..len).varint(), Ok(value as u64));
        }
    }
}
