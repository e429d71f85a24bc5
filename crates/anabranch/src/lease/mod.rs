//! Leases: where they are kept, who holds them, and the suite that every store has to pass.

pub mod store;
mod transactional;
// To choose a store at run time, all have to be there, as they are by default.
mod write_retry;
mod stream_names;
pub mod stores;
pub(crate) mod heartbeat;
pub mod coordinator;
pub mod handle;
#[cfg(feature = "testing")]
pub mod conformance;
mod context;
mod settings;

pub use coordinator::{
    Coordinator, CoordinatorSettings, CoordinatorStartError, StopResult, StreamSettings,
};
pub use handle::{
    CheckpointResult, DrainReason, FinishReason, LeaseHandle, MissingShardResult, ShardEndResult,
    StopReason,
};
pub use store::{LeaseStore, StoreError, StorePoll};
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub use stores::address::{ParseStoreAddressError, StoreAddress};
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub use stores::any::AnyStore;
#[cfg(feature = "aws")]
pub use stores::dynamodb::DynamoDbStore;
pub use stores::memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use stores::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use stores::sqlite::SqliteStore;
pub use stream_names::stream_names;
pub use transactional::{StoreTransaction, TransactionCheckpoint, TransactionalStore};
