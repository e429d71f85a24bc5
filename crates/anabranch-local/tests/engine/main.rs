//! The engine in process, compared with the documented or observed behaviour of the service.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod stage;
mod streams;
mod listing;
mod puts;
mod reads;
mod memory;
mod reshards;
mod lineage;
mod settings;
mod consumers;
mod subscriptions;
mod faults;
mod rates;
mod concurrency;
mod reshard_under_load;
