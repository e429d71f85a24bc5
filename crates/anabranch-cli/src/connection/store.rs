//! The lease store that an address names, for commands.

use super::{Connection, trouble};
use crate::failure::Failure;
use anabranch::lease::{AnyStore, StoreAddress, StoreError};
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

    /// The store at an address where something is to be read, so nothing may be made there.
    pub(crate) async fn existing_store(
        &self,
        address: &StoreAddress,
        application: &str,
    ) -> Result<AnyStore, Failure> {
        match address {
            StoreAddress::Memory => Err(Failure::usage(
                "leases in memory belong to the process that made them: give the store that the \
                 application uses with --leases",
            )),
            StoreAddress::Sqlite(path) if !path.exists() => {
                Err(Failure::usage(format!("there is no file {}", path.display())))
            }
            // A row may say AT_TIMESTAMP and leave the time to the workers; any time will do to
            // look at it.
            address => {
                let store = self.store(address, application).await?;
                Ok(store.map_dynamodb(|store| store.with_start(StartPosition::AtTimestamp(0))))
            }
        }
    }
}

/// A failed call, in words.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        trouble::of_store(&error)
    }
}
