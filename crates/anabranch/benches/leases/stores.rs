//! The stores that are measured: those whose servers the machine has.

use crate::dynamodb_server;
use crate::postgres_server;
use anabranch::lease::{DynamoDbStore, PostgresStore, SqliteStore};
use std::sync::Arc;
use tempfile::TempDir;

/// Where stores are opened. Dropping it ends the servers.
pub(crate) struct Stores {
    /// PostgreSQL, and a database there.
    postgres: Option<(Arc<postgres_server::Server>, String)>,
    /// DynamoDB Local.
    dynamodb: Option<dynamodb_server::Server>,
    /// Where SQLite's files lie.
    folder: TempDir,
}

impl Stores {
    /// Starts the servers. One that is missing is told of and left out.
    pub(crate) async fn start() -> Result<Self, String> {
        let postgres = postgres_server::Server::shared().map(|server| {
            let url = server.fresh_database();
            (server, url)
        });
        let dynamodb = dynamodb_server::Server::java("DynamoDB Local").await;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { postgres, dynamodb, folder })
    }

    /// A store of one worker of `application`.
    pub(crate) fn sqlite(&self, application: &str) -> Result<SqliteStore, String> {
        let path = self.folder.path().join(format!("{application}.db"));
        SqliteStore::open(path, application).map_err(|error| error.to_string())
    }

    /// A store of one worker of `application`, where there is PostgreSQL.
    pub(crate) fn postgres(
        &self,
    ) -> Option<impl Fn(&str) -> Result<PostgresStore, String> + use<'_>> {
        let (_, url) = self.postgres.as_ref()?;
        let open = |application: &str| PostgresStore::connect(url, application);
        Some(move |application: &str| open(application).map_err(|error| error.to_string()))
    }

    /// A store of one worker of `application`, where there is DynamoDB Local.
    pub(crate) fn dynamodb(
        &self,
    ) -> Option<impl Fn(&str) -> Result<DynamoDbStore, String> + use<'_>> {
        let config = self.dynamodb.as_ref()?.config();
        Some(move |table: &str| Ok(DynamoDbStore::native(&config, table)))
    }
}
