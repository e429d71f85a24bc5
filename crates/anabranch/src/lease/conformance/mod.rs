//! The conformance suite that every lease store must pass, unchanged.
//!
//! Each step is applied to the store and to the pure
//! [`LeaseTable`](anabranch_model::lease::LeaseTable) of the same layout. Both must agree on the
//! result and on every row.

mod scene;
mod matrix;
mod takeover;
mod contest;
mod random;

use super::LeaseStore;

/// Runs the whole suite on an application that has no rows yet.
///
/// # Panics
///
/// Panics if the store violates its contract. The message names the step, the expected and the
/// actual result.
pub async fn run<S: LeaseStore + Clone>(store: S) {
    contest::prepare_at_once(&store).await;
    matrix::every_write_in_every_circumstance(&store).await;
    matrix::creates(&store).await;
    matrix::worker_rows(&store).await;
    matrix::facts(&store).await;
    takeover::a_paused_owner_is_shut_out(&store).await;
    takeover::a_late_pass_is_void_after_the_own_row_was_taken_again(&store).await;
    takeover::a_late_checkpoint_undoes_nothing(&store).await;
    contest::one_winner_each_round(&store).await;
    contest::one_fence_counts(&store).await;
    for seed in 0..4 {
        random::writes_agree_with_the_table(&store, seed).await;
    }
}
