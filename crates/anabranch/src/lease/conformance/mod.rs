//! The suite that every lease store has to pass, unchanged.
//!
//! Each step is made on the store and on the pure [`Table`](anabranch_model::lease::Table) of the
//! same layout, and both must agree on the outcome and on every row.

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
/// When the store breaks a promise. The message names the step, what was expected and what came.
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
