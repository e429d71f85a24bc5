//! The native plan by example; whole fleets are in the folder.

mod native;
mod fleets;
mod weights;
#[cfg(test)]
pub(super) mod simulated_fleet;
