//! Kinesis as the library sees it: one seam, in domain types.

pub mod api;
