//! Fault injection: between hosts and services, and in the hosts themselves.

pub mod kind;
pub mod refusal;
pub mod lease_times;
mod partial_commits;
mod old_scans;
mod unreadable;
pub mod call_faults;
pub mod network;
pub mod store;
pub mod stream;
mod push;
pub mod host_faults;
pub mod denials;

pub use call_faults::CallFaultRates;
pub use denials::DenialSchedule;
pub use host_faults::HostFaultRates;
pub use kind::{FaultCounts, FaultKind};
pub use lease_times::LeaseTimes;
pub use network::{CallResult, HostLink, Network, Service};
pub use refusal::RefusalKind;
pub use store::FaultyStore;
pub use stream::FaultyStream;
