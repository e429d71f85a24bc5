//! Whole stories: what runs on the hosts, what befalls them, and which promises are judged.

pub mod report;
pub mod leases;
pub mod stage;
mod start;
pub mod consumer;
pub mod cases;
pub mod fixed;
pub mod producer;

pub use report::SeedReport;
