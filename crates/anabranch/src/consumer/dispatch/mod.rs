//! From replies to handlers: aggregates are deaggregated, records go to the lanes of their keys, and
//! memory is reserved for them.

pub(super) mod dispatcher;
pub(super) mod dedup;
pub(super) mod lane;
pub(super) mod resume;
pub(super) mod memory;
