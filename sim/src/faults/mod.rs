//! What goes wrong: between a host and a service, and with hosts themselves.

pub mod kind;
pub mod refusal;
pub mod lease_times;
mod lag;
mod scan;
mod unreadable;
pub mod weather;
pub mod network;
pub mod store;
pub mod stream;
mod push;
pub mod chaos;
pub mod denial;

pub use chaos::Chaos;
pub use denial::Denials;
pub use kind::{Fault, FaultCounts};
pub use lease_times::LeaseTimes;
pub use network::{Carried, Link, Network, Service};
pub use refusal::Refusal;
pub use store::FaultyStore;
pub use stream::FaultyStream;
pub use weather::Weather;
