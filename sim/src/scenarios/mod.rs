//! Scenarios: programs on the hosts, the faults they meet, and the guarantees that are checked.

pub mod report;
pub mod leases;
pub mod consumer_scenario;
mod start_point;
pub mod consumer;
pub mod reshard_matrix;
pub mod fixed;
pub mod producer;

pub use report::SeedReport;
