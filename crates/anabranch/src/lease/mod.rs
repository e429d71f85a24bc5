//! Leases: where they are kept, who holds them, and the suite that every store has to pass.

pub mod store;
pub mod memory;
mod transactional;
#[cfg(feature = "aws")]
pub mod dynamodb;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "postgres")]
pub mod postgres;
// To choose a store at run time, all have to be there, as they are by default.
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
mod any;
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
mod address;
mod settle;
mod stream_names;
pub(crate) mod pulse;
pub mod coordinator;
pub mod grip;
#[cfg(feature = "testing")]
pub mod conformance;

#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub use address::{ParseStoreAddressError, StoreAddress};
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub use any::AnyStore;
pub use coordinator::{
    Coordinator, CoordinatorSettings, CoordinatorStartError, StopResult, StreamSettings,
};
#[cfg(feature = "aws")]
pub use dynamodb::DynamoDbStore;
pub use grip::{
    CheckpointResult, DrainReason, FinishReason, LeaseHandle, MissingShardResult, ShardEndResult,
    StopReason,
};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{LeaseStore, StoreError, StorePoll};
pub use stream_names::stream_names;
pub use transactional::{StoreTransaction, TransactionCheckpoint, TransactionalStore};
