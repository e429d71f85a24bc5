//! Unusable configurations are refused with plain messages, without secrets.

use crate::postgres_server::Server;
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore, StoreError};

/// Asserts that the error names the problem and the remedy, and contains no password.
fn check(error: &StoreError, kind: &str, words: &[&str]) {
    let (text, debug) = (error.to_string(), format!("{error:?}"));
    assert!(debug.starts_with(kind), "{kind} expected: {debug}");
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
    assert!(!debug.contains(Server::password()), "{debug}");
    assert!(!debug.contains("hunter2"), "{debug}");
}

#[tokio::test]
async fn a_postgres_address_that_leads_nowhere_is_named() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let here = format!("127.0.0.1:{}", server.port());
    let nobody_there = format!("postgres://tester:hunter2@127.0.0.1:{}/x", 1);
    let cases = [
        (format!("postgres://tester:hunter2@{here}/postgres"), "Denied", "password"),
        (server.url("nowhere"), "Unusable", "CREATE DATABASE"),
        (nobody_there, "Unreachable", "refused"),
        ("postgres://tester:hunter2@no.such.host.invalid/x".to_owned(), "Unreachable", "no.such"),
    ];
    for (url, kind, word) in cases {
        let store = PostgresStore::connect(&url, "app").unwrap();
        check(&store.prepare().await.unwrap_err(), kind, &[word, "PostgreSQL"]);
        assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
    }
    let name = "x".repeat(300);
    for application in ["", name.as_str(), "a\0b"] {
        let error = PostgresStore::connect(&url, application).unwrap_err();
        check(&error, "Unusable", &["application"]);
    }
    let store = PostgresStore::connect(&url, "app").unwrap();
    check(&store.clone().with_schema("").unwrap_err(), "Unusable", &["schema"]);
    // Before `prepare` there are no tables, and the error says so.
    check(&store.poll().await.unwrap_err(), "Missing", &["prepare"]);
}

#[tokio::test]
async fn a_role_without_rights_is_told_and_can_use_tables_that_are_there() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    server.sql(database, "CREATE ROLE weak LOGIN PASSWORD 'hunter2'");
    let address = format!("postgres://weak:hunter2@127.0.0.1:{}/{database}", server.port());
    let weak = PostgresStore::connect(&address, "app").unwrap();
    check(&weak.prepare().await.unwrap_err(), "Denied", &["permission denied"]);
    PostgresStore::connect(&url, "other").unwrap().prepare().await.unwrap();
    check(&weak.prepare().await.unwrap_err(), "Denied", &["permission denied"]);
    server.sql(
        database,
        "GRANT USAGE ON SCHEMA anabranch TO weak; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA anabranch TO weak",
    );
    weak.prepare().await.unwrap();
    assert_eq!(weak.poll().await.unwrap().version, Some(0));
}

/// Statements that damage the tables of an existing schema, and the resulting error of `prepare`.
const FOREIGN: [(&str, &[&str]); 4] = [
    ("INSERT INTO {t}schema_version (version) VALUES (7)", &["version 7", "newer"]),
    ("DELETE FROM {t}schema_version", &["schema_version"]),
    ("ALTER TABLE {t}lease DROP COLUMN nonce", &["nonce"]),
    ("DROP TABLE {t}worker", &["worker", "another schema or prefix"]),
];

#[tokio::test]
async fn a_postgres_schema_of_another_form_is_refused_and_left_alone() {
    let Some(server) = Server::shared() else { return };
    for (spoil, words) in FOREIGN {
        let url = server.fresh_database();
        let store = PostgresStore::connect(&url, "app").unwrap();
        store.prepare().await.unwrap();
        let database = url.rsplit('/').next().unwrap();
        server.sql(database, &spoil.replace("{t}", "anabranch."));
        check(&store.prepare().await.unwrap_err(), "ForeignSchema", words);
    }
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    server.sql(database, "CREATE TABLE lease (house text)");
    let store = PostgresStore::connect(&url, "app").unwrap().with_schema("public").unwrap();
    check(&store.prepare().await.unwrap_err(), "ForeignSchema", &["lease"]);
    let tables = server.sql(database, "SELECT relname FROM pg_class WHERE relname = 'worker'");
    assert_eq!(tables, "", "nothing was made beside it");
}

#[tokio::test]
async fn a_file_of_another_form_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    for (i, (spoil, words)) in FOREIGN.into_iter().enumerate() {
        let path = folder.path().join(format!("{i}.db"));
        let store = SqliteStore::open(&path, "app").unwrap();
        store.prepare().await.unwrap();
        sqlite(&path, &spoil.replace("{t}", "anabranch_")).await;
        check(&store.prepare().await.unwrap_err(), "ForeignSchema", words);
    }
    let path = folder.path().join("text.db");
    std::fs::write(&path, "This is a letter, and not a database at all.".repeat(40)).unwrap();
    let store = SqliteStore::open(&path, "app").unwrap();
    check(&store.prepare().await.unwrap_err(), "ForeignSchema", &["text.db", "not a database"]);
    let before = std::fs::read(&path).unwrap();
    assert!(before.starts_with(b"This is a letter"), "the file was left alone");
}

#[tokio::test]
async fn a_path_that_can_hold_no_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/leases.db");
    let cases = [
        (missing.as_path(), "create it first"),
        (folder.path(), "it is a folder"),
        (std::path::Path::new(":memory:"), "MemoryStore"),
        (std::path::Path::new(""), "use the path of a file"),
    ];
    for (path, word) in cases {
        check(&SqliteStore::open(path, "app").unwrap_err(), "Unusable", &[word]);
    }
    let path = folder.path().join("leases.db");
    check(&SqliteStore::open(&path, "").unwrap_err(), "Unusable", &["application"]);
    let store = SqliteStore::open(&path, "app").unwrap();
    check(&store.with_table_prefix("a b").unwrap_err(), "Unusable", &["letters"]);
}

/// Runs statements on a SQLite file without a store.
pub(crate) async fn sqlite(path: &std::path::Path, sql: &str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut file = sqlx::ConnectOptions::connect(&options).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut file).await.unwrap();
    sqlx::Connection::close(file).await.unwrap();
}

#[tokio::test]
async fn a_sqlite_file_that_was_removed_or_replaced_is_not_used_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let old = SqliteStore::open(&path, "app").unwrap();
    old.prepare().await.unwrap();
    old.poll().await.unwrap();
    for ending in ["", "-wal", "-shm"] {
        // Not every one of them always exists.
        let _ = std::fs::remove_file(folder.path().join(format!("leases.db{ending}")));
    }
    check(&old.poll().await.unwrap_err(), "Unreachable", &["leases.db", "deleted or replaced"]);
    assert!(!path.exists(), "the old store must not make another file");
    let new = SqliteStore::open(&path, "app").unwrap();
    new.prepare().await.unwrap();
    new.poll().await.unwrap();
    check(&old.poll().await.unwrap_err(), "Unreachable", &["leases.db", "deleted or replaced"]);
}
