//! Whole stories: what runs on the hosts, what befalls them, and which promises are judged.

pub mod report;
pub mod leases;
pub mod consumer_scenario;
mod start_point;
pub mod consumer;
pub mod reshard_matrix;
pub mod fixed;
pub mod producer;

pub use report::SeedReport;
