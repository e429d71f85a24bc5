//! The measured lease stores, as far as their servers are installed.

use crate::dynamodb_server;
use crate::postgres_server;
use anabranch::lease::{DynamoDbStore, PostgresStore, SqliteStore};
use std::sync::Arc;
use tempfile::TempDir;

/// The stores' servers and files. Dropping it stops the servers.
pub(crate) struct Stores {
    /// PostgreSQL server, and the URL of a database on it.
    postgres: Option<(Arc<postgres_server::Server>, String)>,
    /// DynamoDB Local.
    dynamodb: Option<dynamodb_server::Server>,
    /// Folder of the SQLite files.
    folder: TempDir,
}

impl Stores {
    /// Starts the servers. A missing server is reported and skipped.
    pub(crate) async fn start() -> Result<Self, String> {
        let postgres = postgres_server::Server::shared().map(|server| {
            let url = server.fresh_database();
            (server, url)
        });
        let dynamodb = dynamodb_server::Server::java("DynamoDB Local").await;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { postgres, dynamodb, folder })
    }

    /// Opens a store for one worker of `application`.
    pub(crate) fn sqlite(&self, application: &str) -> Result<SqliteStore, String> {
        let path = self.folder.path().join(format!("{application}.db"));
        SqliteStore::open(path, application).map_err(|error| error.to_string())
    }

    /// Returns a function that opens a store for one worker of an application, if PostgreSQL is
    /// available.
    pub(crate) fn postgres(
        &self,
    ) -> Option<impl Fn(&str) -> Result<PostgresStore, String> + use<'_>> {
        let (_, url) = self.postgres.as_ref()?;
        let open = |application: &str| PostgresStore::connect(url, application);
        Some(move |application: &str| open(application).map_err(|error| error.to_string()))
    }

    /// Returns a function that opens a store for one worker of an application, if DynamoDB Local is
    /// available.
    pub(crate) fn dynamodb(
        &self,
    ) -> Option<impl Fn(&str) -> Result<DynamoDbStore, String> + use<'_>> {
        let config = self.dynamodb.as_ref()?.config();
        Some(move |table: &str| Ok(DynamoDbStore::native(&config, table)))
    }
}
