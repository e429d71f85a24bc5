//! Whole stories: what runs on the hosts, what befalls them, and which promises are judged.

pub mod report;
pub mod leases;

pub use report::Report;
