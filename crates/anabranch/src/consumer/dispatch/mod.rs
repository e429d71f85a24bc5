//! The path from replies to handlers: deaggregation, assignment of records to lanes, and the memory
//! budget.

pub(super) mod dispatcher;
pub(super) mod dedup;
pub(super) mod lane;
pub(super) mod resume;
pub(super) mod memory;
