//! Splitter of a byte stream into lines of bounded length.

/// Longest line that is kept. A protocol message has a few hundred bytes.
pub const LINE_MAX_BYTES: usize = 64 * 1024;

/// Splits bytes into lines. Buffers at most [`LINE_MAX_BYTES`].
#[derive(Debug, Default)]
pub struct LineSplitter {
    /// Start of the incomplete line.
    kept: Vec<u8>,
    /// Number of its bytes that exceeded the limit and were dropped.
    cut: usize,
}

/// A line of output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitLine {
    /// The line, possibly truncated, without its line break. Invalid UTF-8 is replaced.
    pub text: String,
    /// Number of bytes dropped because the line was too long.
    pub cut: usize,
}

impl LineSplitter {
    /// Adds bytes, and passes each line that they complete to `line`.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(SplitLine)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            self.keep(&rest[..end]);
            line(self.take());
            rest = &rest[end + 1..];
        }
        self.keep(rest);
    }

    /// Returns the incomplete line after the end of input.
    pub fn finish(&mut self) -> Option<SplitLine> {
        let nothing = self.kept.is_empty() && self.cut == 0;
        (!nothing).then(|| self.take())
    }

    /// Returns the number of buffered bytes of the incomplete line.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_MAX_BYTES - self.kept.len();
        let fits = bytes.len().min(room);
        self.kept.extend_from_slice(&bytes[..fits]);
        self.cut += bytes.len() - fits;
    }

    fn take(&mut self) -> SplitLine {
        if self.cut == 0 && self.kept.last() == Some(&b'\r') {
            self.kept.pop();
        }
        let text = String::from_utf8_lossy(&self.kept).into_owned();
        let cut = std::mem::take(&mut self.cut);
        // A long line must not hold its memory for the rest of the child's life.
        self.kept = Vec::new();
        SplitLine { text, cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(pieces: &[&[u8]]) -> Vec<SplitLine> {
        let (mut cutter, mut lines) = (LineSplitter::default(), Vec::new());
        for piece in pieces {
            cutter.push(piece, |line| lines.push(line));
        }
        lines.extend(cutter.finish());
        lines
    }

    fn check(pieces: &[&[u8]], expected: &[&str]) {
        let expected: Vec<SplitLine> =
            expected.iter().map(|text| SplitLine { text: (*text).to_owned(), cut: 0 }).collect();
        assert_eq!(cut(pieces), expected);
    }

    #[test]
    fn lines_are_cut_however_the_bytes_arrive() {
        check(&[], &[]);
        check(&[b"a"], &["a"]);
        check(&[b"a\n"], &["a"]);
        check(&[b"\n\na\r\nb"], &["", "", "a", "b"]);
        check(&[b"on", b"e\ntw", b"", b"o\nthr"], &["one", "two", "thr"]);
        check(&[b"\xff\xfe\n"], &["\u{fffd}\u{fffd}"]);
    }

    #[test]
    fn a_line_of_five_megabytes_keeps_its_start_and_the_count_of_the_rest() {
        let (start, rest) = (b"start ", vec![b'x'; 5 << 20]);
        let lines = cut(&[start, &rest, b"\nnext\n"]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].text.starts_with("start xxx"));
        assert_eq!(lines[0].text.len(), LINE_MAX_BYTES);
        assert_eq!(lines[0].cut, start.len() + rest.len() - LINE_MAX_BYTES);
        assert_eq!(lines[1], SplitLine { text: "next".to_owned(), cut: 0 });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_byte_is_lost_and_none_is_invented(
            pieces in proptest::collection::vec(proptest::collection::vec(0x20_u8..0x7f, 0..40), 0..20),
            ends in proptest::collection::vec(any::<bool>(), 20),
        ) {
            let (mut cutter, mut lines, mut whole) = (LineSplitter::default(), Vec::new(), String::new());
            for (piece, ends) in pieces.iter().zip(ends) {
                let mut bytes = piece.clone();
                if ends { bytes.push(b'\n'); }
                whole.push_str(&String::from_utf8(bytes.clone()).unwrap());
                cutter.push(&bytes, |line| lines.push(line.text));
            }
            lines.extend(cutter.finish().map(|line| line.text));
            let expected: Vec<&str> = whole.lines().collect();
            prop_assert_eq!(lines, expected);
        }
    }
}
