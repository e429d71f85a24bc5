//! Rows of text in columns, as wide as the terminal lets them be.
//!
//! ```text
//! rows ── fits? ──▶ as they are
//!           └─ no ─▶ short names of shards ─▶ columns give way, each in its turn ─▶ lines are cut
//! ```

use crate::line::short;
use crate::output::print_line;
use anabranch_model::ids::ShardId;
use std::borrow::Cow;

/// The gap between two columns.
const GAP: usize = 2;
/// How the full name of a shard begins.
const SHARD: &str = "shardId-";
/// The digits of one.
const DIGITS: usize = 12;

/// A column, and how it gives way where the terminal is too narrow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    /// Its head.
    head: &'static str,
    /// When it gives way: those with the lowest number first. Those with the same do it from left
    /// to right.
    turn: u8,
    /// The least that is left of it, in letters. With none it goes whole.
    least: usize,
}

impl Column {
    /// One that is worth more than all others.
    pub(crate) const fn kept(head: &'static str) -> Self {
        Self { head, turn: u8::MAX, least: usize::MAX }
    }

    /// One that is cut to `least` letters, in its turn.
    pub(crate) const fn cut(head: &'static str, turn: u8, least: usize) -> Self {
        Self { head, turn, least }
    }

    /// One that goes whole, in its turn.
    pub(crate) const fn dropped(head: &'static str, turn: u8) -> Self {
        Self { head, turn, least: 0 }
    }
}

/// Prints rows under the heads of their columns, so that no line wraps in a terminal. Elsewhere
/// nothing is cut.
pub(crate) fn show(columns: &[Column], rows: &[Vec<String>]) {
    for line in fitted(columns, rows, crate::output::width()) {
        print_line!("{line}");
    }
}

/// The lines of rows under the heads of their columns, none wider than `width`.
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

/// Takes up to `too_much` letters from a column, or the whole of it.
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

/// A text in so many letters: what is cut off shows as `…`.
pub(crate) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if letters(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept.push('…');
    Cow::Owned(kept)
}

/// A text with `shard-4` where it says `shardId-000000000004`.
fn with_short_shards(text: &str) -> String {
    let mut told = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(SHARD) {
        let end = at + SHARD.len() + DIGITS;
        told.push_str(&rest[..at]);
        // What has no such number stays what it is.
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

/// Lines with their cells under each other. The last cell of a row may be as long as it likes.
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
        // Nothing more gives way, so lines are cut.
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
