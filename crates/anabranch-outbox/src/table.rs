//! Outbox table configuration: name, columns and the treatment of sent rows.

use crate::error::RelayError;

/// Longest table name in bytes. The table of blocked keys, the indexes and the trigger append a
/// suffix to it.
const NAME_MAX_BYTES: usize = 45;

/// Treatment of a row once it is in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterSend {
    /// The row is deleted.
    #[default]
    Delete,
    /// The row stays, and the column `sent_at` is set to the current time.
    Mark,
}

/// Names of the table's columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames {
    /// Ascending number that defines the send order. Default: `id`.
    pub id: String,
    /// Partition key. Default: `partition_key`.
    pub partition_key: String,
    /// Event data. Default: `data`.
    pub data: String,
    /// Transaction that wrote the row, an `xid8`. Default: `transaction_id`.
    pub transaction_id: String,
    /// Explicit hash key in decimal, overriding the partition key's hash. Optional. Default:
    /// `explicit_hash_key`.
    pub explicit_hash_key: String,
    /// JSON headers of the event. Optional. Default: `headers`.
    pub headers: String,
    /// Creation time of the row. Optional. Default: `created_at`.
    pub created_at: String,
    /// Event id, in place of one derived from the row. Optional. Default: `event_id`.
    pub event_id: String,
    /// Time at which the row was sent, for [`AfterSend::Mark`]. Default: `sent_at`.
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
    /// Parses `id=event_no,data=payload`: the default name on the left, the table's on the right.
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
                        "{other:?} is not an outbox column: use id, partition_key, data, \
                         transaction_id, explicit_hash_key, headers, created_at, event_id and \
                         sent_at, each as OURS=YOURS"
                    )));
                }
            };
            if theirs.is_empty() || theirs.len() > 63 {
                return Err(RelayError::Name(format!(
                    "column {ours} needs the name of your column: {ours}=NAME, with 1 to 63 bytes"
                )));
            }
            theirs.clone_into(slot);
        }
        Ok(columns)
    }
}

/// An outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) columns: ColumnNames,
    pub(crate) after: AfterSend,
    /// True if `init` creates the notification trigger.
    pub(crate) notify: bool,
}

impl OutboxTable {
    /// Creates a table from `NAME` (in the schema `public`) or `SCHEMA.NAME`.
    pub fn named(name: &str) -> Result<Self, RelayError> {
        let (schema, name) = name.split_once('.').unwrap_or(("public", name));
        let fits = |part: &str, max: usize| {
            !part.is_empty() && part.len() <= max && !part.contains(['\0', '.'])
        };
        if !fits(schema, 63) || !fits(name, NAME_MAX_BYTES) {
            return Err(RelayError::Name(format!(
                "{:?} can't name an outbox: give NAME or SCHEMA.NAME, with a name of 1 to \
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

    /// Sets the column names. Default: those that `init` creates.
    #[must_use]
    pub fn with_columns(mut self, columns: ColumnNames) -> Self {
        self.columns = columns;
        self
    }

    /// Sets the treatment of a row once it is in the stream. Default: [`AfterSend::Delete`].
    #[must_use]
    pub fn with_after_send(mut self, after: AfterSend) -> Self {
        self.after = after;
        self
    }

    /// Sets whether `init` creates the notification trigger for new rows. Default: true. PostgreSQL
    /// rejects `PREPARE TRANSACTION` in a transaction that has sent a notification.
    #[must_use]
    pub fn with_notify(mut self, notify: bool) -> Self {
        self.notify = notify;
        self
    }

    /// Returns `schema.name`, for messages and notifications.
    pub fn label(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// Returns the quoted table name.
    pub(crate) fn sql(&self) -> String {
        self.beside("")
    }

    /// Returns the quoted name of the table of blocked keys.
    pub(crate) fn parked_sql(&self) -> String {
        self.beside("_parked")
    }

    /// Returns the quoted name of an object in the same schema, named after the table plus
    /// `suffix`.
    pub(crate) fn beside(&self, suffix: &str) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&format!("{}{suffix}", self.name)))
    }

    /// Returns the condition for rows that wait to be sent, as a prefix for further conditions.
    pub(crate) fn pending_and(&self) -> String {
        match self.after {
            AfterSend::Delete => String::new(),
            AfterSend::Mark => format!("{} IS NULL AND ", quoted(&self.columns.sent_at)),
        }
    }
}

/// Quotes an SQL identifier.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes an SQL string literal.
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
