//! Text tables that fit the width of the terminal.
//!
//! ```text
//! rows ── fit? ──▶ unchanged
//!           └─ no ─▶ short shard names ─▶ columns cut or dropped in turn ─▶ lines cut
//! ```

use crate::line::short;
use crate::output::print_line;
use anabranch_model::ids::ShardId;
use std::borrow::Cow;

/// Gap between two columns.
const GAP: usize = 2;
/// Prefix of a full shard name.
const SHARD: &str = "shardId-";
/// Digits of a shard number.
const DIGITS: usize = 12;

/// A table column, and its shortening on narrow terminals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    /// Column header.
    head: &'static str,
    /// Order of shortening, lowest first. Equal numbers go from left to right.
    turn: u8,
    /// Minimum width in characters. 0 drops the column.
    least: usize,
}

impl Column {
    /// Creates a column that is never shortened.
    pub(crate) const fn kept(head: &'static str) -> Self {
        Self { head, turn: u8::MAX, least: usize::MAX }
    }

    /// Creates a column that is cut to `least` characters, in its turn.
    pub(crate) const fn cut(head: &'static str, turn: u8, least: usize) -> Self {
        Self { head, turn, least }
    }

    /// Creates a column that is dropped, in its turn.
    pub(crate) const fn dropped(head: &'static str, turn: u8) -> Self {
        Self { head, turn, least: 0 }
    }
}

/// Prints a table, so that no line wraps on a terminal. Other output is not cut.
pub(crate) fn show(columns: &[Column], rows: &[Vec<String>]) {
    for line in fitted(columns, rows, crate::output::width()) {
        print_line!("{line}");
    }
}

/// Returns the lines of a table, none wider than `width`.
pub(crate) fn fitted(
    columns: &[Column],
    rows: &[Vec<String>],
    width: Option<usize>,
) -> Vec<String> {
    let head = columns.iter().map(|column| column.head.to_owned()).collect();
    let mut rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().cloned()).collect();
    let Some(width) = width.filter(|width| widest(&rows) > *width) else {
        return aligned(&rows);
    };
    for cell in rows.iter_mut().flatten() {
        *cell = with_short_shards(cell);
    }
    let mut left: Vec<Column> = columns.to_vec();
    let mut turns: Vec<Column> = columns.to_vec();
    turns.sort_by_key(|column| column.turn);
    for column in turns {
        let too_much = widest(&rows).saturating_sub(width);
        if too_much == 0 {
            break;
        }
        let at = left.iter().position(|it| it.head == column.head && it.turn == column.turn);
        if let Some(at) = at {
            give_way(&mut rows, &mut left, at, too_much);
        }
    }
    aligned(&rows).iter().map(|line| cut(line, width).into_owned()).collect()
}

/// Cuts up to `too_much` characters from a column, or drops it.
fn give_way(rows: &mut [Vec<String>], left: &mut Vec<Column>, at: usize, too_much: usize) {
    let Column { least, .. } = left[at];
    if least == 0 {
        for row in rows.iter_mut().filter(|row| row.len() > at) {
            row.remove(at);
        }
        left.remove(at);
        return;
    }
    let cells = rows.iter().filter_map(|row| row.get(at));
    let widest = cells.map(|cell| letters(cell)).max().unwrap_or(0);
    let room = widest.saturating_sub(too_much).max(least);
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(at)) {
        *cell = cut(cell, room).into_owned();
    }
}

/// Cuts a text to `width` characters, marked by `…`.
pub(crate) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if letters(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept.push('…');
    Cow::Owned(kept)
}

/// Replaces `shardId-000000000004` by `shard-4` in a text.
fn with_short_shards(text: &str) -> String {
    let mut told = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(SHARD) {
        let end = at + SHARD.len() + DIGITS;
        told.push_str(&rest[..at]);
        // A name without such a number stays unchanged.
        let Some(name) = rest.get(at..end) else {
            told.push_str(&rest[at..]);
            return told;
        };
        told.push_str(&short(&ShardId::from(name)));
        rest = &rest[end..];
    }
    told.push_str(rest);
    told
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

fn widest(rows: &[Vec<String>]) -> usize {
    aligned(rows).iter().map(|line| letters(line)).max().unwrap_or(0)
}

/// Aligns cells in columns. The last cell of a row may have any length.
pub(crate) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| row.len() > column + 1);
        cells.map(|row| letters(&row[column])).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let gap = width.saturating_sub(letters(cell)) + GAP;
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', gap));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn cells_stand_under_each_other() {
        let rows = [row(&["a", "b", "c"]), row(&["└─ äö", "x", "long text"]), row(&["only"])];
        assert_eq!(aligned(&rows), ["a      b  c", "└─ äö  x  long text", "only"]);
    }

    fn check(width: Option<usize>, expected: &[&str]) {
        let columns = [
            Column::kept("shard"),
            Column::dropped("keys", 0),
            Column::cut("owner", 2, 6),
            Column::cut("", 1, 8),
        ];
        let rows = [
            row(&["shardId-000000000000", "100.0 %", "worker-äöü-12345", ""]),
            row(&["└─ shardId-000000000001", "50.0 %", "-", "not read: shard-0 comes first"]),
            row(&["   └─ shard-2 (above)"]),
        ];
        let lines = fitted(&columns, &rows, width);
        assert_eq!(lines, expected, "{width:?}");
        let fits = |line: &String| letters(line) <= width.unwrap_or(usize::MAX);
        assert!(lines.iter().all(fits), "{width:?}");
    }

    #[test]
    fn a_table_gives_way_column_by_column_where_the_terminal_is_narrow() {
        let whole = [
            "shard                    keys     owner",
            "shardId-000000000000     100.0 %  worker-äöü-12345",
            "└─ shardId-000000000001  50.0 %   -                 not read: shard-0 comes first",
            "   └─ shard-2 (above)",
        ];
        check(None, &whole);
        check(Some(81), &whole);
        check(
            Some(80),
            &[
                "shard       keys     owner",
                "shard-0     100.0 %  worker-äöü-12345",
                "└─ shard-1  50.0 %   -                 not read: shard-0 comes first",
                "   └─ shard-2 (above)",
            ],
        );
        check(
            Some(60),
            &[
                "shard       owner",
                "shard-0     worker-äöü-12345",
                "└─ shard-1  -                 not read: shard-0 comes first",
                "   └─ shard-2 (above)",
            ],
        );
        check(
            Some(40),
            &[
                "shard       owner",
                "shard-0     worker-äöü-12345",
                "└─ shard-1  -                 not read:…",
                "   └─ shard-2 (above)",
            ],
        );
        check(
            Some(30),
            &[
                "shard       owner",
                "shard-0     worker-…",
                "└─ shard-1  -         not rea…",
                "   └─ shard-2 (above)",
            ],
        );
        // No column can be shortened further, so lines are cut.
        check(Some(10), &["shard    …", "shard-0  …", "└─ shard-…", "   └─ sha…"]);
    }

    #[test]
    fn only_the_numbers_of_shards_become_short() {
        let check = |text, expected: &str| assert_eq!(with_short_shards(text), expected);
        check("a shardId-000000000012, shardId-000000000003.", "a shard-12, shard-3.");
        check("shardId-x", "shardId-x");
        check("shardId-abcdefghijkl", "shardId-abcdefghijkl");
        check("shardId-äöüäöü", "shardId-äöüäöü");
    }
}
