//! The audit of a stream and its rows.

use super::crew::Crew;
use crate::lease::LeaseStore;
use crate::stream::api::StreamApi;
use std::sync::Arc;

/// Audits for ever.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(crew: Arc<Crew<S, A>>) {
    loop {
        crew.tools.clock.sleep(crew.settings().audit_ms).await;
    }
}
