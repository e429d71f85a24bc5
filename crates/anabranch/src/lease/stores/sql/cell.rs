//! A single value of a row, as both databases store it.

use super::failure::SqlFailure;

/// A value to store, or one that was read. Absent values to store keep their type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Cell {
    Text(Option<String>),
    Number(i64),
    /// An absent number to store. An absent number that was read is `Text(None)`.
    NoNumber,
    Flag(bool),
    Bytes(Option<Vec<u8>>),
}

impl Cell {
    pub(in crate::lease) fn text(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }

    /// Stores the bits of the number in SQL's signed integer, so that every number can be restored.
    /// Numbers below 2^63 look the same.
    pub(in crate::lease) fn number(number: u64) -> Self {
        Self::Number(number.cast_signed())
    }

    pub(in crate::lease) fn optional_number(number: Option<u64>) -> Self {
        number.map_or(Self::NoNumber, Self::number)
    }

    pub(in crate::lease) fn is_absent(&self) -> bool {
        matches!(self, Self::Text(None) | Self::Bytes(None) | Self::NoNumber)
    }
}

/// Reads the values of a row in the order of its columns.
pub(in crate::lease) struct RowReader {
    columns: std::slice::Iter<'static, &'static str>,
    cells: std::vec::IntoIter<Cell>,
    /// Key of the row for errors, as far as it was read.
    row: String,
}

impl RowReader {
    pub(in crate::lease) fn new(columns: &'static [&'static str], cells: Vec<Cell>) -> Self {
        Self { columns: columns.iter(), cells: cells.into_iter(), row: String::new() }
    }

    /// Reads a text that is part of the row's key.
    pub(in crate::lease) fn key(&mut self) -> Result<String, SqlFailure> {
        let text = self.text()?;
        if !self.row.is_empty() {
            self.row.push('/');
        }
        self.row.push_str(&text);
        Ok(text)
    }

    pub(in crate::lease) fn text(&mut self) -> Result<String, SqlFailure> {
        match self.next()? {
            (_, Cell::Text(Some(text))) => Ok(text),
            (column, cell) => Err(self.unreadable(column, &format!("{cell:?} is not a text"))),
        }
    }

    pub(in crate::lease) fn optional_text(&mut self) -> Result<Option<String>, SqlFailure> {
        match self.next()? {
            (_, Cell::Text(text)) => Ok(text),
            (column, cell) => Err(self.unreadable(column, &format!("{cell:?} is not a text"))),
        }
    }

    pub(in crate::lease) fn number(&mut self) -> Result<u64, SqlFailure> {
        match self.next()? {
            (_, Cell::Number(number)) => Ok(number.cast_unsigned()),
            (column, cell) => Err(self.unreadable(column, &format!("{cell:?} is not a number"))),
        }
    }

    pub(in crate::lease) fn optional_number(&mut self) -> Result<Option<u64>, SqlFailure> {
        match self.next()? {
            (_, Cell::Number(number)) => Ok(Some(number.cast_unsigned())),
            (_, Cell::Text(None)) => Ok(None),
            (column, cell) => Err(self.unreadable(column, &format!("{cell:?} is not a number"))),
        }
    }

    /// Reads a boolean, which SQLite stores as a number.
    pub(in crate::lease) fn flag(&mut self) -> Result<bool, SqlFailure> {
        match self.next()? {
            (_, Cell::Flag(flag)) => Ok(flag),
            (_, Cell::Number(number @ (0 | 1))) => Ok(number == 1),
            (column, cell) => Err(self.unreadable(column, &format!("{cell:?} is not a boolean"))),
        }
    }

    pub(in crate::lease) fn optional_bytes(&mut self) -> Result<Option<Vec<u8>>, SqlFailure> {
        match self.next()? {
            (_, Cell::Bytes(bytes)) => Ok(bytes),
            (_, Cell::Text(None)) => Ok(None),
            (column, cell) => Err(self.unreadable(
                column,
                &format!(
                    "{cell:?} is not a byte \
                                                                    string"
                ),
            )),
        }
    }

    /// Reads a text and parses it.
    pub(in crate::lease) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SqlFailure> {
        let column = self.columns.as_slice().first().copied().unwrap_or_default();
        let text = self.text()?;
        parse(&text).map_err(|why| self.unreadable(column, &why.to_string()))
    }

    /// Reads a text that may be absent and parses it.
    pub(in crate::lease) fn optional_parsed<T, E: std::fmt::Display>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, SqlFailure> {
        let column = self.columns.as_slice().first().copied().unwrap_or_default();
        let text = self.optional_text()?;
        text.map(|text| parse(&text))
            .transpose()
            .map_err(|why| self.unreadable(column, &why.to_string()))
    }

    fn next(&mut self) -> Result<(&'static str, Cell), SqlFailure> {
        match (self.columns.next(), self.cells.next()) {
            (Some(column), Some(cell)) => Ok((*column, cell)),
            (column, _) => Err(self.unreadable(column.unwrap_or(&""), "it is missing")),
        }
    }

    fn unreadable(&self, column: &str, why: &str) -> SqlFailure {
        SqlFailure::Unreadable { row: self.row.clone(), detail: format!("column {column}: {why}") }
    }
}
