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

pub use chaos::HostFaultRates;
pub use denial::DenialSchedule;
pub use kind::{FaultCounts, FaultKind};
pub use lease_times::LeaseTimes;
pub use network::{CallResult, HostLink, Network, Service};
pub use refusal::RefusalKind;
pub use store::FaultyStore;
pub use stream::FaultyStream;
pub use weather::CallFaultRates;
