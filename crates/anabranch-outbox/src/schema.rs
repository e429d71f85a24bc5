//! Schema of the outbox table as the database catalog reports it, and the problems found in it.

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::{RelayError, TableProblem};
use crate::table::{AfterSend, OutboxTable, quoted};
use sqlx::Row;

/// Oldest supported server version: the first with 64-bit transaction ids (`xid8`).
const SERVER_MIN: i32 = 130_000;

/// Schema of the outbox table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact of the catalog")]
pub(crate) struct TableSchema {
    pub(crate) columns: Vec<TableColumn>,
    /// Sequence that supplies `id`.
    pub(crate) sequence: Option<IdSequence>,
    pub(crate) indexes: Vec<TableIndex>,
    /// True for an ordinary, logged table, which survives a crash.
    pub(crate) durable: bool,
    /// True if row-level security hides rows from this role.
    pub(crate) rows_hidden: bool,
    /// True if the table has the notification trigger.
    pub(crate) notifies: bool,
    /// True if the table of blocked keys exists.
    pub(crate) parked: bool,
    /// True if that table has the column `transaction_id`, which distinguishes rows with the same
    /// id.
    pub(crate) parked_by_transaction: bool,
    /// Missing privileges of this role: privilege and table.
    pub(crate) lacks: Vec<(String, String)>,
    /// Server version number, such as 130000.
    pub(crate) server: i32,
    /// True if the server is a standby.
    pub(crate) standby: bool,
}

/// A column of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableColumn {
    pub(crate) name: String,
    /// Type in SQL notation.
    pub(crate) kind: String,
    /// Default expression in SQL notation.
    pub(crate) default: Option<String>,
}

/// Sequence that supplies the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdSequence {
    /// Name in SQL notation.
    pub(crate) name: String,
    /// Number of values that a session caches.
    pub(crate) cache: i64,
    pub(crate) increment: i64,
    /// True if the sequence wraps around at its end.
    pub(crate) cycles: bool,
}

/// A valid B-tree index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableIndex {
    /// Its first column.
    pub(crate) first: String,
    /// True for a unique index.
    pub(crate) unique: bool,
    /// Predicate of a partial index.
    pub(crate) only: Option<String>,
}

const COLUMNS: &str = "\
SELECT a.attname::text, format_type(a.atttypid, NULL), pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum";

/// Selects the sequence that the column owns or that its default expression uses.
const SEQUENCE: &str = "\
SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle
FROM pg_sequence s JOIN pg_attribute a ON a.attrelid = to_regclass($1) AND a.attname = $2
WHERE EXISTS (
    SELECT FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid
      AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
  ) OR EXISTS (
    SELECT FROM pg_depend d JOIN pg_attrdef ad
      ON d.classid = 'pg_attrdef'::regclass AND d.objid = ad.oid
    WHERE ad.adrelid = a.attrelid AND ad.adnum = a.attnum AND d.refobjid = s.seqrelid
  )
LIMIT 1";

const INDEXES: &str = "\
SELECT a.attname::text, i.indisunique, pg_get_expr(i.indpred, i.indrelid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND m.amname = 'btree'";

const REST: &str = "\
SELECT c.relkind IN ('r', 'p') AND c.relpersistence = 'p', row_security_active(c.oid),
  EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = $2),
  to_regclass($3) IS NOT NULL, current_setting('server_version_num')::int, pg_is_in_recovery(),
  has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, $4),
  EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass($3)
    AND a.attname = 'transaction_id' AND NOT a.attisdropped)
FROM pg_class c WHERE c.oid = to_regclass($1)";

const PARKED_RIGHTS: &str = "\
SELECT has_table_privilege($1, 'SELECT'), has_table_privilege($1, 'INSERT'),
  has_table_privilege($1, 'UPDATE'), has_table_privilege($1, 'DELETE')";

/// Reads the table's schema. Returns `None` if the table does not exist.
pub(crate) async fn inspect(
    link: &mut DatabaseSession,
    table: &OutboxTable,
) -> Result<Option<TableSchema>, RelayError> {
    let doing = "describe the outbox";
    let remove = match table.after {
        AfterSend::Delete => "DELETE",
        AfterSend::Mark => "UPDATE",
    };
    let trigger = format!("{}_notify", table.name);
    let rest = arguments![table.sql(), trigger, table.parked_sql(), remove];
    let Some(row) = link.rows(Statement { sql: REST, arguments: rest, doing }).await?.pop() else {
        return Ok(None);
    };
    let mut shape = TableSchema {
        durable: row.get(0),
        rows_hidden: row.get(1),
        notifies: row.get(2),
        parked: row.get(3),
        server: row.get(4),
        standby: row.get(5),
        parked_by_transaction: row.get(8),
        ..TableSchema::default()
    };
    let mut right = |has: bool, right: &str, on: String| {
        if !has {
            shape.lacks.push((right.to_owned(), on));
        }
    };
    right(row.get(6), "SELECT", table.sql());
    right(row.get(7), remove, table.sql());
    if shape.parked {
        let ask =
            Statement { sql: PARKED_RIGHTS, arguments: arguments![table.parked_sql()], doing };
        let row = link.row(ask).await?;
        for (at, name) in ["SELECT", "INSERT", "UPDATE", "DELETE"].into_iter().enumerate() {
            right(row.get(at), name, table.parked_sql());
        }
    }
    let ask = Statement { sql: COLUMNS, arguments: arguments![table.sql()], doing };
    shape.columns = link.rows(ask).await?.iter().map(column).collect();
    let arguments = arguments![table.sql(), &table.columns.id];
    let ask = Statement { sql: SEQUENCE, arguments, doing };
    shape.sequence = link.rows(ask).await?.pop().map(|row| IdSequence {
        name: row.get(0),
        cache: row.get(1),
        increment: row.get(2),
        cycles: row.get(3),
    });
    let ask = Statement { sql: INDEXES, arguments: arguments![table.sql()], doing };
    let index = |row: &sqlx::postgres::PgRow| TableIndex {
        first: row.get(0),
        unique: row.get(1),
        only: row.get(2),
    };
    shape.indexes = link.rows(ask).await?.iter().map(index).collect();
    Ok(Some(shape))
}

fn column(row: &sqlx::postgres::PgRow) -> TableColumn {
    TableColumn { name: row.get(0), kind: row.get(1), default: row.get(2) }
}

impl TableSchema {
    pub(crate) fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns true if an index starts with this column and covers every row that waits to be sent.
    pub(crate) fn has_index(&self, table: &OutboxTable, first: &str) -> bool {
        self.indexes.iter().any(|index| {
            let all = index.only.is_none();
            // In a table that keeps its rows, an index of all rows grows without bound.
            let fits = match table.after {
                AfterSend::Delete => all,
                AfterSend::Mark => index.only.as_deref().is_some_and(|only| {
                    let only = only.replace(['(', ')', '"'], "");
                    only.trim() == format!("{} IS NULL", table.columns.sent_at)
                }),
            };
            index.first == first && fits
        })
    }

    /// Returns the problems that prevent relaying, each with its remedy.
    pub(crate) fn problems(&self, table: &OutboxTable) -> Vec<TableProblem> {
        let mut problems = Vec::new();
        let mut add = |what: String, way_out: String| problems.push(TableProblem { what, way_out });
        let columns = &table.columns;
        let init = "run 'anabranch relay init' with the same options, or see it with --print";
        if self.server < SERVER_MIN {
            let server = self.server / 10_000;
            add(format!("the server is PostgreSQL {server}"), "use 13 or later".to_owned());
        }
        if self.standby {
            let way_out = "give the URL of the primary server".to_owned();
            add("the server is a standby".to_owned(), way_out);
        }
        if !self.durable {
            let way_out = format!("ALTER TABLE {} SET LOGGED", table.sql());
            add(
                "it is not a table, or a crash empties it because it is unlogged".to_owned(),
                way_out,
            );
        }
        if self.rows_hidden {
            let way_out = "give the relay's role BYPASSRLS".to_owned();
            add("row-level security hides rows".to_owned(), way_out);
        }
        for (right, on) in &self.lacks {
            let way_out = format!("GRANT {right} ON {on} TO the relay's role");
            add(format!("the role may not {right}"), way_out);
        }
        let text = ["text", "character varying", "uuid", "character"];
        let wanted: [(&str, &[&str]); 4] = [
            (&columns.id, &["bigint", "integer", "smallint"]),
            (&columns.partition_key, &[&text[..], &["bigint", "integer"]].concat()),
            (&columns.data, &["bytea", "text", "character varying", "json", "jsonb"]),
            (&columns.transaction_id, &["xid8"]),
        ];
        for (name, kinds) in wanted {
            match self.column(name) {
                None => add(
                    format!("column {name} is missing"),
                    format!("name yours with --columns, or {init}"),
                ),
                Some(column) if !kinds.contains(&column.kind.as_str()) => add(
                    format!("column {name} is of type {}", column.kind),
                    format!("it must be one of {}", kinds.join(", ")),
                ),
                Some(_) => {}
            }
        }
        if let Some(TableColumn { name, kind, .. }) = self.column(&columns.created_at)
            && !kind.starts_with("timestamp")
            && kind != "date"
        {
            let way_out = "it must be a timestamp; name another column, or one that does not \
                           exist, with --columns created_at=NAME";
            add(format!("column {name} is of type {kind}"), way_out.to_owned());
        }
        if let Some(column) = self.column(&columns.transaction_id) {
            let default = column.default.as_deref().unwrap_or_default();
            if !default.contains("pg_current_xact_id()") {
                add(
                    format!("column {} does not default to pg_current_xact_id()", column.name),
                    init.to_owned(),
                );
            }
        }
        self.sequence_problems(table, &mut add);
        for name in [&columns.id, &columns.transaction_id] {
            if self.column(name).is_some() && !self.has_index(table, name) {
                add(format!("no index begins with {name}"), init.to_owned());
            }
        }
        let unique = |index: &TableIndex| index.unique && index.only.is_none();
        if !self.indexes.iter().any(|index| index.first == columns.id && unique(index)) {
            let way_out = format!("ALTER TABLE {} ADD UNIQUE ({})", table.sql(), columns.id);
            add(format!("column {} is not unique", columns.id), way_out);
        }
        if table.after == AfterSend::Mark && self.column(&columns.sent_at).is_none() {
            add(format!("column {} is missing", columns.sent_at), init.to_owned());
        }
        if !self.parked {
            add(format!("the table {} is missing", table.parked_sql()), init.to_owned());
        } else if !self.parked_by_transaction {
            let what = format!("the table {} is of an older version", table.parked_sql());
            add(what, init.to_owned());
        }
        problems
    }

    /// Adds problems of the sequence. Rows are sent by id, so ids must be assigned one by one in
    /// insertion order.
    fn sequence_problems(&self, table: &OutboxTable, add: &mut impl FnMut(String, String)) {
        let id = &table.columns.id;
        match &self.sequence {
            None => add(
                format!("no sequence assigns the numbers of column {id}"),
                format!(
                    "ALTER TABLE {} ALTER COLUMN {} ADD GENERATED BY DEFAULT AS IDENTITY",
                    table.sql(),
                    quoted(id)
                ),
            ),
            Some(IdSequence { name, cache, .. }) if *cache != 1 => add(
                format!(
                    "sequence {name} hands out {cache} numbers at a time, so a later row can have a \
                     lower {id}"
                ),
                format!(
                    "ALTER SEQUENCE {name} CACHE 1, and wait until the open sessions have ended"
                ),
            ),
            Some(IdSequence { name, increment, .. }) if *increment < 1 => add(
                format!("sequence {name} counts down"),
                format!("ALTER SEQUENCE {name} INCREMENT 1"),
            ),
            // Some libraries step by, for example, 50 and assign the 50 ids themselves.
            Some(IdSequence { name, increment, .. }) if *increment > 1 => add(
                format!(
                    "sequence {name} steps by {increment}: a writer that fills the gaps by itself \
                     gives a later row a lower {id}"
                ),
                format!(
                    "ALTER SEQUENCE {name} INCREMENT 1, and let writers draw a number for each row \
                     (Hibernate: allocationSize = 1)"
                ),
            ),
            Some(IdSequence { name, cycles: true, .. }) => add(
                format!("sequence {name} starts again at its end"),
                format!("ALTER SEQUENCE {name} NO CYCLE"),
            ),
            Some(_) => {}
        }
    }
}
