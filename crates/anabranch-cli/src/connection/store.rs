//! Opening of lease stores by address.

use super::{ConnectionSettings, KclStreams, explain};
use crate::failure::CommandFailure;
use anabranch::lease::stores::dynamodb::KclStreamId;
use anabranch::lease::{AnyStore, DynamoDbStore, LeaseStore, StoreAddress, StoreError};
use anabranch::stream::api::StreamSummary;
use anabranch_model::ids::StreamName;
use anabranch_model::position::StartPosition;

impl ConnectionSettings {
    /// Opens the store at an address. Makes no call, and creates nothing.
    pub(crate) async fn store(
        &self,
        address: &StoreAddress,
        application: &str,
    ) -> Result<AnyStore, CommandFailure> {
        let aws = Box::pin(async { Ok::<_, CommandFailure>(self.aws().await?.config) });
        let store = address.open(application, aws).await?;
        Ok(store)
    }

    /// Opens an existing store for reading, and creates nothing. A given `stream` must be one of
    /// those in the store.
    pub(crate) async fn existing_store(
        &self,
        address: &StoreAddress,
        application: &str,
        stream: Option<&str>,
    ) -> Result<AnyStore, CommandFailure> {
        match address {
            StoreAddress::Memory => Err(CommandFailure::usage(
                "leases in memory belong to the process that created them: give the application's \
                 store with --leases",
            )),
            StoreAddress::Sqlite(path) if !path.exists() => Err(CommandFailure::usage(format!(
                "there is no file {}: check --leases, or start a worker there",
                path.display()
            ))),
            address @ StoreAddress::Kcl(_) => {
                let table = address.table(application).unwrap_or(application);
                let store = self.kcl_table_for_any(table, stream).await?;
                // A row may contain AT_TIMESTAMP and leave the time to the workers. For reading,
                // any time will do.
                Ok(store.with_start(StartPosition::AtTimestamp(0)).into())
            }
            address => self.store(address, application).await,
        }
    }

    /// Returns the store for reading one stream: for the table of a KCL application with several
    /// streams, a view of that stream's rows only. `named` is the stream as a KCL id, if the user
    /// gave one.
    pub(crate) async fn store_to_read(
        &self,
        store: AnyStore,
        application: &str,
        (stream, summary): (&StreamName, &StreamSummary),
        named: Option<&KclStreamId>,
    ) -> Result<AnyStore, CommandFailure> {
        let streams = match self.kcl_table(application) {
            Some(table) => Some((table, KclStreams::of(&store.probe().await?))),
            None => None,
        };
        let Some((table, streams)) = streams.filter(|(_, streams)| !streams.is_empty()) else {
            return match named {
                None => Ok(store),
                Some(named) => Err(CommandFailure::usage(format!(
                    "{named} names a stream of a KCL table for several streams, but the lease \
                     store is not such a table: give the stream as {stream}"
                ))),
            };
        };
        let id = streams.to_read(stream, summary, named).map_err(|why| {
            CommandFailure::usage(format!(
                "the table {table} holds several streams, and {why}; another stream needs its own \
                 --app and store"
            ))
        })?;
        let (config, name) = (self.aws().await?.config, stream.clone());
        let identify = move |asked: &StreamName| (*asked == name).then(|| id.clone());
        Ok(DynamoDbStore::kcl_multi_stream(&config, table, identify).into())
    }

    /// Opens the table of a KCL application, for one stream or several.
    async fn kcl_table_for_any(
        &self,
        table: &str,
        stream: Option<&str>,
    ) -> Result<DynamoDbStore, CommandFailure> {
        let config = self.aws().await?.config;
        let single = DynamoDbStore::kcl(&config, table);
        let streams = KclStreams::of(&single.probe().await?);
        if streams.is_empty() {
            return Ok(single);
        }
        if let Some(name) = stream.filter(|name| streams.find(name).is_none()) {
            let names: Vec<_> = streams.names().map(StreamName::as_str).collect();
            return Err(CommandFailure::usage(format!(
                "the table {table} holds several streams, and {name} is not one of them ({})",
                names.join(", ")
            )));
        }
        let identify =
            move |name: &StreamName| streams.find(name.as_str()).map(|(_, id)| id.clone());
        Ok(DynamoDbStore::kcl_multi_stream(&config, table, identify))
    }
}

/// Explains a failed call.
impl From<StoreError> for CommandFailure {
    fn from(error: StoreError) -> Self {
        explain::of_store(&error)
    }
}
