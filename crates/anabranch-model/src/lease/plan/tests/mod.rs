//! Tests of the native plan: single decisions, whole fleets and weights.

mod native;
mod fleets;
mod weights;
#[cfg(test)]
pub(super) mod simulated_fleet;
