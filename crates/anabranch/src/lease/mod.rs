//! Leases: where they are kept, and the suite that every store has to pass.

pub mod store;
pub mod memory;
#[cfg(feature = "testing")]
pub mod conformance;

pub use memory::MemoryStore;
pub use store::{LeaseStore, Look, StoreError};
