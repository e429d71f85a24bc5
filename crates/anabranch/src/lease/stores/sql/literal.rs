//! Values written into the text of a statement, for PostgreSQL.
//!
//! A parameter needs a prepared statement: a name that outlives the call, or a second round trip
//! between preparing and executing. A pooler that lends a connection for one transaction breaks
//! both. Text in one message needs one round trip and leaves nothing behind, whatever lies in
//! between.

use super::cell::Cell;
use super::failure::SqlFailure;
use std::fmt::Write as _;

/// Replaces `$1`, `$2` and so on by the values, except inside quotes.
pub(in crate::lease) fn with_values(sql: &str, cells: &[Cell]) -> Result<String, SqlFailure> {
    let mut text = String::with_capacity(sql.len() + 32 * cells.len());
    let mut rest = sql;
    let mut quote = None;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        if quote.is_none() && letter == '$' {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let cell =
                rest[..digits].parse().ok().and_then(|n: usize| cells.get(n.checked_sub(1)?));
            let cell = cell.ok_or_else(|| failure(format!("no value for ${}", &rest[..digits])))?;
            write_value(&mut text, cell)?;
            rest = &rest[digits..];
            continue;
        }
        // A doubled quote ends the quoted text and begins it again.
        quote = match (quote, letter) {
            (None, '"' | '\'') => Some(letter),
            (Some(open), close) if open == close => None,
            (quote, _) => quote,
        };
        text.push(letter);
    }
    Ok(text)
}

fn write_value(sql: &mut String, cell: &Cell) -> Result<(), SqlFailure> {
    let written = match cell {
        Cell::Text(None) | Cell::Bytes(None) | Cell::NoNumber => write!(sql, "NULL"),
        Cell::Text(Some(text)) => return write_text(sql, text),
        Cell::Number(number) => write!(sql, "'{number}'::bigint"),
        Cell::Flag(flag) => write!(sql, "{flag}"),
        Cell::Bytes(Some(bytes)) => write!(sql, "decode('{}', 'hex')", hex(bytes)),
    };
    written.map_err(|_| failure("cannot format a value".to_owned()))
}

/// Writes a text literal that does not depend on `standard_conforming_strings`. Characters beyond
/// ASCII stay as they are: every connection of `sqlx` uses UTF-8, and only a server in UTF-8
/// accepts `\U` for them.
fn write_text(sql: &mut String, text: &str) -> Result<(), SqlFailure> {
    sql.push_str("E'");
    for letter in text.chars() {
        match letter {
            '\0' => {
                return Err(failure(
                    "PostgreSQL does not support a zero byte in a text".to_owned(),
                ));
            }
            '\'' => sql.push_str("''"),
            '\\' => sql.push_str("\\\\"),
            control if control.is_ascii_control() => {
                let _always = write!(sql, "\\U{:08x}", u32::from(control));
            }
            other => sql.push(other),
        }
    }
    sql.push_str("'::text");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _always = write!(hex, "{byte:02x}");
    }
    hex
}

/// Parses the text form of `bytea`: `\x` and hexadecimal digits (`bytea_output = 'hex'`), or text
/// with octal escapes and doubled backslashes (`'escape'`).
pub(in crate::lease) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("\\x") {
        return digits.as_bytes().chunks(2).map(|pair| number(pair, 2, 16)).collect();
    }
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', _) => (number(after.get(..3)?, 3, 8)?, &after[3..]),
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}

/// Parses a byte of `length` digits.
fn number(digits: &[u8], length: usize, radix: u32) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == length)?;
    u8::from_str_radix(digits, radix).ok()
}

fn failure(detail: String) -> SqlFailure {
    SqlFailure::Sql(sqlx::Error::Encode(detail.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_take_the_places_of_parameters_and_quoted_text_stays() {
        let text = |text: &str| Cell::Text(Some(text.to_owned()));
        for (sql, cells, written) in [
            ("SELECT $1", vec![text("a")], "SELECT E'a'::text"),
            ("SELECT $1", vec![text("")], "SELECT E''::text"),
            ("SELECT $1", vec![text("it's \\' \"$2\"")], "SELECT E'it''s \\\\'' \"$2\"'::text"),
            ("SELECT $1", vec![text("é\n😀")], "SELECT E'é\\U0000000a😀'::text"),
            ("SELECT $2, $1", vec![text("a"), Cell::Number(-5)], "SELECT '-5'::bigint, E'a'::text"),
            ("SELECT $1", vec![Cell::Bytes(Some(vec![0, 0xff]))], "SELECT decode('00ff', 'hex')"),
            ("$1,$2", vec![Cell::Flag(true), Cell::NoNumber], "true,NULL"),
            ("\"a$1\"\"$1\" '$1''$1' $1", vec![Cell::Text(None)], "\"a$1\"\"$1\" '$1''$1' NULL"),
        ] {
            assert_eq!(with_values(sql, &cells).unwrap(), written);
        }
        let ten: Vec<Cell> = (1..=10).map(Cell::Number).collect();
        assert_eq!(with_values("$10$1", &ten).unwrap(), "'10'::bigint'1'::bigint");
    }

    #[test]
    fn bytes_are_read_in_both_forms_that_postgres_has() {
        for (text, bytes) in [
            ("\\x", Some(vec![])),
            ("\\x00ff5c", Some(vec![0, 0xff, 0x5c])),
            ("", Some(vec![])),
            ("a\\\\x\\000\\377", Some(vec![b'a', b'\\', b'x', 0, 0xff])),
            ("\\x0", None),
            ("\\x0g", None),
            ("\\37", None),
            ("\\400", None),
            ("\\", None),
        ] {
            assert_eq!(bytes_of(text), bytes, "{text}");
        }
    }

    #[test]
    fn a_value_that_is_missing_or_that_no_text_can_hold_is_an_error() {
        for (sql, cell) in
            [("$2", Cell::Flag(true)), ("$0", Cell::Flag(true)), ("$", Cell::Flag(true))]
        {
            assert!(with_values(sql, &[cell]).is_err(), "{sql}");
        }
        assert!(with_values("$1", &[Cell::Text(Some("a\0b".to_owned()))]).is_err());
    }
}
