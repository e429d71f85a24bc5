//! Leases: the lease stores, and the coordinator that shares the shards among workers.
//!
//! ```no_run
//! use anabranch::{Consumer, PostgresStore};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = PostgresStore::connect("postgres://app:secret@db/app", "mailer")?;
//! let consumer = Consumer::new("orders", "mailer").with_leases(leases);
//! # let _ = consumer;
//! # Ok(())
//! # }
//! ```
//!
//! | store | feature | shared by |
//! |---|---|---|
//! | [`MemoryStore`] | – | one process |
//! | `SqliteStore` | `sqlite` | the processes of one machine |
//! | `PostgresStore` | `postgres` | a fleet |
//! | `DynamoDbStore` | `aws` | a fleet, optionally together with KCL workers |
//!
//! `StoreAddress` selects a store at run time. Other stores implement [`LeaseStore`]; the suite in
//! `conformance` (feature `testing`) verifies them.
//!
//! A [`Consumer`](crate::Consumer) runs the coordinator by itself. The other types of this module
//! serve programs that read shards in their own way:
//!
//! ```text
//! Coordinator ◄── StorePoll, LeaseListing ──┬── LeaseStore
//!   │   └── plan ── Write ──────────────────┘       ▲
//!   │                                               │ fenced Write
//!   └── LeaseHandle ──► reader of one shard ──► checkpoint, end, resolve_missing
//! ```

pub mod store;
mod transactional;
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
// Choosing a store at run time requires all of them, which the default features include.
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
