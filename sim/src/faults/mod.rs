//! What goes wrong: between a host and a service, and with hosts themselves.

pub mod kind;
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
pub use network::{Carried, Link, Network, Service};
pub use store::FaultyStore;
pub use stream::FaultyStream;
pub use weather::Weather;
