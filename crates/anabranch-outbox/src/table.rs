//! The outbox table: where it is, what its columns are called, what becomes of a row that was sent.

use crate::error::RelayError;

/// The longest name of a table: the relay's own table, indexes and trigger are called after it.
const NAME_MAX_BYTES: usize = 45;

/// What becomes of a row once it is in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterSend {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, with the time in its column `sent_at`.
    Mark,
}

/// What the columns are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames {
    /// A number that grows: the order in which rows are sent. Default `id`.
    pub id: String,
    /// The partition key. Default `partition_key`.
    pub partition_key: String,
    /// The event. Default `data`.
    pub data: String,
    /// The transaction that wrote the row, an `xid8`. Default `transaction_id`.
    pub transaction_id: String,
    /// A hash key in place of the partition key's, in decimal. May be missing. Default
    /// `explicit_hash_key`.
    pub explicit_hash_key: String,
    /// JSON that travels beside the event. May be missing. Default `headers`.
    pub headers: String,
    /// When the row was written. May be missing. Default `created_at`.
    pub created_at: String,
    /// The name of the event, in place of one made of row and transaction. May be missing. Default
    /// `event_id`.
    pub event_id: String,
    /// When the row was sent, where rows stay. Default `sent_at`.
    pub sent_at: String,
}

impl Default for ColumnNames {
    fn default() -> Self {
        Self {
            id: "id".to_owned(),
            partition_key: "partition_key".to_owned(),
            data: "data".to_owned(),
            transaction_id: "transaction_id".to_owned(),
            explicit_hash_key: "explicit_hash_key".to_owned(),
            headers: "headers".to_owned(),
            created_at: "created_at".to_owned(),
            event_id: "event_id".to_owned(),
            sent_at: "sent_at".to_owned(),
        }
    }
}

impl ColumnNames {
    /// Reads `id=event_no,data=payload`: ours on the left, the table's on the right.
    pub fn parse(text: &str) -> Result<Self, RelayError> {
        let mut columns = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (ours, theirs) = pair.split_once('=').unwrap_or((pair, ""));
            let (ours, theirs) = (ours.trim(), theirs.trim());
            let slot = match ours {
                "id" => &mut columns.id,
                "partition_key" => &mut columns.partition_key,
                "data" => &mut columns.data,
                "transaction_id" => &mut columns.transaction_id,
                "explicit_hash_key" => &mut columns.explicit_hash_key,
                "headers" => &mut columns.headers,
                "created_at" => &mut columns.created_at,
                "event_id" => &mut columns.event_id,
                "sent_at" => &mut columns.sent_at,
                other => {
                    return Err(RelayError::Name(format!(
                        "{other:?} is no column of an outbox: there are id, partition_key, data, \
                         transaction_id, explicit_hash_key, headers, created_at, event_id and \
                         sent_at, each as OURS=YOURS"
                    )));
                }
            };
            if theirs.is_empty() || theirs.len() > 63 {
                return Err(RelayError::Name(format!(
                    "column {ours} needs the name of yours: {ours}=NAME, of 1 to 63 bytes"
                )));
            }
            theirs.clone_into(slot);
        }
        Ok(columns)
    }
}

/// The outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    /// The schema.
    pub(crate) schema: String,
    /// The name.
    pub(crate) name: String,
    /// What its columns are called.
    pub(crate) columns: ColumnNames,
    /// What becomes of a row once it is in the stream.
    pub(crate) after: AfterSend,
    /// Whether `init` lets writers tell of their rows.
    pub(crate) notify: bool,
}

impl OutboxTable {
    /// The table `NAME`, of the schema `public`, or `SCHEMA.NAME`.
    pub fn named(name: &str) -> Result<Self, RelayError> {
        let (schema, name) = name.split_once('.').unwrap_or(("public", name));
        let fits = |part: &str, max: usize| {
            !part.is_empty() && part.len() <= max && !part.contains(['\0', '.'])
        };
        if !fits(schema, 63) || !fits(name, NAME_MAX_BYTES) {
            return Err(RelayError::Name(format!(
                "{:?} can't name an outbox: give NAME or SCHEMA.NAME, the name of 1 to \
                 {NAME_MAX_BYTES} bytes",
                format!("{schema}.{name}")
            )));
        }
        Ok(Self {
            schema: schema.to_owned(),
            name: name.to_owned(),
            columns: ColumnNames::default(),
            after: AfterSend::default(),
            notify: true,
        })
    }

    /// What its columns are called. Default: as `init` makes them.
    #[must_use]
    pub fn with_columns(mut self, columns: ColumnNames) -> Self {
        self.columns = columns;
        self
    }

    /// What becomes of a row once it is in the stream. Default: it is deleted.
    #[must_use]
    pub fn with_after_send(mut self, after: AfterSend) -> Self {
        self.after = after;
        self
    }

    /// Whether `init` makes the trigger that tells of new rows. Default: it does. PostgreSQL refuses
    /// to prepare a transaction (`PREPARE TRANSACTION`) that told somebody something.
    #[must_use]
    pub fn with_notify(mut self, notify: bool) -> Self {
        self.notify = notify;
        self
    }

    /// The table in messages, and in notifications.
    pub fn label(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// The table in SQL.
    pub(crate) fn sql(&self) -> String {
        self.beside("")
    }

    /// The table of parked keys in SQL.
    pub(crate) fn parked_sql(&self) -> String {
        self.beside("_parked")
    }

    /// Something of the same schema that is called after the table, in SQL.
    pub(crate) fn beside(&self, suffix: &str) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&format!("{}{suffix}", self.name)))
    }

    /// The condition under which a row waits to be sent, to stand before others.
    pub(crate) fn pending_and(&self) -> String {
        match self.after {
            AfterSend::Delete => String::new(),
            AfterSend::Mark => format!("{} IS NULL AND ", quoted(&self.columns.sent_at)),
        }
    }
}

/// A name in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in SQL.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_with_or_without_its_schema_and_quoted() {
        for (name, sql) in [
            ("outbox", "\"public\".\"outbox\""),
            ("billing.outbox", "\"billing\".\"outbox\""),
            ("a.o\"x; DROP", "\"a\".\"o\"\"x; DROP\""),
        ] {
            assert_eq!(OutboxTable::named(name).unwrap().sql(), sql);
        }
        for name in ["", ".x", "x.", "a.b.c", &"x".repeat(46)] {
            let error = OutboxTable::named(name).unwrap_err().to_string();
            assert!(error.contains("SCHEMA.NAME"), "{name}: {error}");
        }
    }

    #[test]
    fn columns_are_mapped_by_name_and_mistakes_are_named() {
        let columns = ColumnNames::parse("id=event_no, data=payload").unwrap();
        assert_eq!((columns.id.as_str(), columns.data.as_str()), ("event_no", "payload"));
        assert_eq!(columns.partition_key, "partition_key");
        for (text, word) in [("key=k", "partition_key"), ("id", "id=NAME"), ("id=", "id=NAME")] {
            let error = ColumnNames::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
