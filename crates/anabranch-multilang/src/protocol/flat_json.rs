//! Parser of flat JSON objects: names with scalar values, and numbers of any length.
//!
//! A worker may send a sequence number as a JSON number. Its 56 digits exceed any machine number,
//! so numbers stay text.

/// A scalar value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PlainValue {
    /// A string, unescaped.
    Text(String),
    /// A number, as written.
    Number(String),
    /// `true` or `false`.
    Flag(bool),
    /// `null`.
    Null,
}

/// Parses the object at the start of `line`. Returns `None` if there is none, or if it contains
/// arrays or objects. Text after the object is ignored, as Java's reader does.
pub(super) fn read(line: &str) -> Option<Vec<(String, PlainValue)>> {
    let mut rest = line.trim_start().strip_prefix('{')?.trim_start();
    let mut fields = Vec::new();
    if rest.starts_with('}') {
        return Some(fields);
    }
    loop {
        let (name, after) = text(rest)?;
        let (value, after) = plain(after.trim_start().strip_prefix(':')?.trim_start())?;
        fields.push((name, value));
        rest = after.trim_start();
        if rest.starts_with('}') {
            return Some(fields);
        }
        rest = rest.strip_prefix(',')?.trim_start();
    }
}

fn plain(rest: &str) -> Option<(PlainValue, &str)> {
    if rest.starts_with('"') {
        let (value, rest) = text(rest)?;
        return Some((PlainValue::Text(value), rest));
    }
    let end = rest.find(|c: char| c == ',' || c == '}' || c.is_ascii_whitespace())?;
    let (word, rest) = rest.split_at(end);
    let value = match word {
        "null" => PlainValue::Null,
        "true" => PlainValue::Flag(true),
        "false" => PlainValue::Flag(false),
        // Only the syntax is checked; the digits are kept as written.
        number if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            serde_json::from_str::<serde::de::IgnoredAny>(number).ok()?;
            PlainValue::Number(number.to_owned())
        }
        _ => return None,
    };
    Some((value, rest))
}

/// Parses a string at the start of `rest`. Returns it with the remaining text.
fn text(rest: &str) -> Option<(String, &str)> {
    let body = rest.strip_prefix('"')?;
    let mut escaped = false;
    for (index, byte) in body.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                let (quoted, after) = rest.split_at(index + 2);
                return Some((serde_json::from_str(quoted).ok()?, after));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Option<&[(&str, PlainValue)]>) {
        let expected = expected
            .map(|fields| fields.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect());
        assert_eq!(read(line), expected, "{line}");
    }

    #[test]
    fn flat_objects_are_read_and_everything_else_is_not() {
        let number = |digits: &str| PlainValue::Number(digits.to_owned());
        let text = |text: &str| PlainValue::Text(text.to_owned());
        check("{}", Some(&[]));
        check(" { } and more", Some(&[]));
        check(
            r#"{"a":null,"b":true}"#,
            Some(&[("a", PlainValue::Null), ("b", PlainValue::Flag(true))]),
        );
        let long = "49590338271490256608559692538361571095921575989136588898";
        check(&format!(r#"{{"s" : {long} }}"#), Some(&[("s", number(long))]));
        check(r#"{"a\"\u0062":"\\x\n"}"#, Some(&[("a\"b", text("\\x\n"))]));
        check(r#"{"k":"}"} tail"#, Some(&[("k", text("}"))]));
        for line in [
            "",
            "{",
            "null",
            "[]",
            "x{}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1"#,
            r#"{"a":1,}"#,
            r#"{"a":[]}"#,
            r#"{"a":{}}"#,
            r#"{"a":nul}"#,
            r#"{"a":01}"#,
            r#"{"a":"x}"#,
            r#"{"a":"\q"}"#,
            r"{a:1}",
        ] {
            check(line, None);
        }
    }
}
