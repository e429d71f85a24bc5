//! Benchmarks: ratios to a peer in the same run, never a bare time.

pub(crate) mod local;
pub(crate) mod leases;
