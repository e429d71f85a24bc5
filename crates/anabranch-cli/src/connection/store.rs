//! The lease store that an address names, for commands.

use super::{Connection, KclStreams, trouble};
use crate::failure::Failure;
use anabranch::lease::{AnyStore, DynamoDbStore, LeaseStore, StoreAddress, StoreError};
use anabranch_model::ids::StreamName;
use anabranch_model::position::StartPosition;

impl Connection {
    /// The store at an address. Nothing is sent yet, and nothing is made.
    pub(crate) async fn store(
        &self,
        address: &StoreAddress,
        application: &str,
    ) -> Result<AnyStore, Failure> {
        let aws = Box::pin(async { Ok(self.aws().await?.config) });
        address.open(application, aws).await
    }

    /// The store at an address where something is to be read, so nothing may be made there. A
    /// `stream` that is named has to be one of those that it is for.
    pub(crate) async fn existing_store(
        &self,
        address: &StoreAddress,
        application: &str,
        stream: Option<&str>,
    ) -> Result<AnyStore, Failure> {
        match address {
            StoreAddress::Memory => Err(Failure::usage(
                "leases in memory belong to the process that made them: give the store that the \
                 application uses with --leases",
            )),
            StoreAddress::Sqlite(path) if !path.exists() => Err(Failure::usage(format!(
                "there is no file {}: check --leases, or start a worker there",
                path.display()
            ))),
            address @ StoreAddress::Kcl(_) => {
                let table = address.table(application).unwrap_or(application);
                let store = self.kcl_table_for_any(table, stream).await?;
                // A row may say AT_TIMESTAMP and leave the time to the workers; any time will do
                // to look at it.
                Ok(store.with_start(StartPosition::AtTimestamp(0)).into())
            }
            address => self.store(address, application).await,
        }
    }

    /// The table of a KCL application, be it for one stream or for several.
    async fn kcl_table_for_any(
        &self,
        table: &str,
        stream: Option<&str>,
    ) -> Result<DynamoDbStore, Failure> {
        let config = self.aws().await?.config;
        let single = DynamoDbStore::kcl(&config, table);
        let streams = KclStreams::of(&single.survey().await?);
        if streams.is_empty() {
            return Ok(single);
        }
        if let Some(name) = stream.filter(|name| streams.find(name).is_none()) {
            let names: Vec<_> = streams.names().map(StreamName::as_str).collect();
            return Err(Failure::usage(format!(
                "the table {table} is for several streams, and {name} is none of them: there are {}",
                names.join(", ")
            )));
        }
        let identify =
            move |name: &StreamName| streams.find(name.as_str()).map(|(_, id)| id.clone());
        Ok(DynamoDbStore::kcl_multi_stream(&config, table, identify))
    }
}

/// A failed call, in words.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        trouble::of_store(&error)
    }
}
