//! Parser of Java properties files, with escapes, comments and continuation lines.

use std::iter::Peekable;
use std::str::Chars;

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    /// Key.
    pub key: String,
    /// Value, without spaces at its ends.
    pub value: String,
    /// Number of its first line, starting at 1.
    pub line: usize,
}

/// Error for an invalid escape.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "line {line}: {escape:?} is not a character: \\u must be followed by four hexadecimal digits"
)]
pub struct EscapeError {
    /// Line number, starting at 1.
    pub line: usize,
    /// The invalid escape.
    pub escape: String,
}

/// Parses a properties file and returns its entries in order. A key may appear twice: the last one
/// counts.
///
/// Java decodes the bytes as Latin-1. Here they are decoded as UTF-8, or as Latin-1 if they are
/// invalid UTF-8. Java keeps trailing spaces of a value; here they are dropped, because no setting
/// needs them.
pub fn parse(bytes: &[u8]) -> Result<Vec<Property>, EscapeError> {
    let latin1 = || bytes.iter().map(|byte| char::from(*byte)).collect();
    let text = std::str::from_utf8(bytes).map_or_else(|_| latin1(), str::to_owned);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut entries = Vec::new();
    for (line, logical) in logical_lines(text) {
        let mut rest = logical.chars().peekable();
        let key = unescape(&mut rest, line, |c| matches!(c, '=' | ':') || is_space(c))?;
        skip_spaces(&mut rest);
        if rest.next_if(|c| matches!(c, '=' | ':')).is_some() {
            skip_spaces(&mut rest);
        }
        let value = unescape(&mut rest, line, |_| false)?;
        entries.push(Property { key, value: value.trim_matches(is_space).to_owned(), line });
    }
    Ok(entries)
}

/// Returns the logical lines: continuation lines are joined, and comments and blank lines skipped.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    // Splitting at both characters of "\r\n" would create an extra empty line and change the line
    // numbers, so the pair is replaced first.
    let text = text.replace("\r\n", "\n");
    let mut natural = text.split(['\n', '\r']).enumerate();
    let mut lines = Vec::new();
    while let Some((index, line)) = natural.next() {
        let line = line.trim_start_matches(is_space);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while is_continued(&logical) {
            logical.pop();
            match natural.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(is_space)),
                None => break,
            }
        }
        lines.push((index + 1, logical));
    }
    lines
}

fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

fn skip_spaces(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|c| is_space(*c)).is_some() {}
}

/// Unescapes up to the first unescaped character for which `stop` returns true.
fn unescape(
    rest: &mut Peekable<Chars<'_>>,
    line: usize,
    stop: impl Fn(char) -> bool,
) -> Result<String, EscapeError> {
    // Java's escapes are UTF-16 code units, so two of them may form one character.
    let mut units: Vec<u16> = Vec::new();
    while let Some(c) = rest.next_if(|c| !stop(*c)) {
        let c = match (c, c == '\\') {
            (plain, false) => plain,
            (_, true) => match rest.next() {
                None => break,
                Some('u') => {
                    units.push(unit(rest, line)?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some(other) => other,
            },
        };
        units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    }
    Ok(String::from_utf16_lossy(&units))
}

fn unit(rest: &mut Peekable<Chars<'_>>, line: usize) -> Result<u16, EscapeError> {
    let digits: String = rest.by_ref().take(4).collect();
    let plain = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| plain);
    unit.ok_or_else(|| EscapeError { line, escape: format!("\\u{digits}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &[(&str, &str, usize)]) {
        let entries = parse(text.as_bytes()).expect("it is a properties file");
        let got: Vec<_> =
            entries.iter().map(|e| (e.key.as_str(), e.value.as_str(), e.line)).collect();
        assert_eq!(got, expected, "{text:?}");
    }

    #[test]
    fn files_are_read_as_java_reads_them() {
        check("", &[]);
        check("# a\n! b\n\n   # c", &[]);
        check("a=1", &[("a", "1", 1)]);
        check(
            "a = 1\r\nb: 2\rc 3\nd",
            &[("a", "1", 1), ("b", "2", 2), ("c", "3", 3), ("d", "", 4)],
        );
        check("a==1\nb = : 2", &[("a", "=1", 1), ("b", ": 2", 2)]);
        check("a\\ b\\=c = d", &[("a b=c", "d", 1)]);
        check("a = one, \\\n    two\nb = 2", &[("a", "one, two", 1), ("b", "2", 3)]);
        check("a = b\\\\\nc = d", &[("a", "b\\", 1), ("c", "d", 2)]);
        check("a = b\\", &[("a", "b", 1)]);
        check("a = \\u0041\\t\\n\\q", &[("a", "A\t\nq", 1)]);
        check("a = \\uD83D\\uDE00", &[("a", "\u{1f600}", 1)]);
        check("a = 1   ", &[("a", "1", 1)]);
        check("a = é", &[("a", "é", 1)]);
        check("a = x # no comment", &[("a", "x # no comment", 1)]);
        // A comment is never continued.
        check("# a \\\nb = 1", &[("b", "1", 2)]);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_latin1() {
        let entries = parse(b"a = \xe9").unwrap();
        assert_eq!(entries[0].value, "é");
    }

    #[test]
    fn an_escape_that_is_none_is_named_with_its_line() {
        for text in ["x=1\na = \\u12", "x=1\na = \\u12g4", "x=1\na = \\u+123"] {
            let said = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(said.starts_with("line 2: ") && said.contains("\\\\u"), "{said}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_file_makes_the_reader_fall_over(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
