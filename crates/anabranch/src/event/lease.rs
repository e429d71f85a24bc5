//! What happens to leases, and to the worker that holds them.

use anabranch_model::lease::WorkerId;

/// What happened to the leases of a worker, or to the worker itself.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// It joined the fleet under this id.
    Joined {
        /// Its id for this join.
        worker: WorkerId,
    },
}
