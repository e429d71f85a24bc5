//! The SQLite store passes the suite, and keeps what a file shared by processes needs.

use anabranch::lease::{SqliteStore, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_sqlite_store_keeps_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    conformance::run(SqliteStore::open(path, "app").unwrap()).await;
}
