//! A table that somebody else works on is left alone, at the start and later.

use super::crew::CoordinatorShared;
use super::open::{PAUSE_MS, check_store_retryable};
use super::{CoordinatorStartError, LeaseContext};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::stream::api::StreamApi;
use anabranch_model::lease::survey::{ProbeVerdict, evaluate, must_yield};
use anabranch_model::lease::{KclProbe, Layout};

/// Looks at the table until it is clear or has to be refused. Only a table on which a fleet of KCL
/// 3.x has worked takes time. Returns what was seen last, and since when the leases have not moved
/// from there, by this worker's clock.
pub(super) async fn probe_table<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
) -> Result<(KclProbe, u64), CoordinatorStartError> {
    let first = probe_once(tools).await?;
    let since_ms = tools.clock.now_ms();
    let (mut latest, mut elapsed_ms) = (first.clone(), 0);
    loop {
        match evaluate(&first, &latest, elapsed_ms, tools.settings.lease_time_ms) {
            ProbeVerdict::Clear => return Ok((latest, since_ms)),
            ProbeVerdict::Refuse(hindrance) => {
                return Err(CoordinatorStartError::TableInUse { hindrance: hindrance.to_string() });
            }
            ProbeVerdict::Wait { ms } => {
                if elapsed_ms == 0 {
                    let leader = latest.leader.as_ref().map(|leader| leader.owner.clone());
                    tools.emit(LeaseEvent::WaitingForKcl3 { wait: ms, leader });
                }
                // Whoever is at work shows it sooner.
                tools.clock.sleep(ms.min(tools.settings.lease_time_ms)).await;
            }
        }
        // Counted until the look begins, so that nothing is taken for longer than it was.
        elapsed_ms = tools.clock.now_ms() - since_ms;
        latest = probe_once(tools).await?;
    }
}

/// Looks again while the worker is at work, and leaves the table to a fleet of KCL 3.x: its leader
/// deals the leases, and whoever takes them as 2.x does would fight it. Returns what was seen.
pub(super) async fn probe_again<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    start: &KclProbe,
) -> Option<KclProbe> {
    let tools = &crew.context;
    if tools.store.layout() == Layout::Native {
        return None;
    }
    let survey = match tools.read_store(tools.store.probe()).await {
        Ok(survey) => survey,
        Err(error) => {
            tools.emit_store_failure("survey", &error);
            return None;
        }
    };
    if let Some(hindrance) = must_yield(start, &survey)
        && !crew.is_stopping()
        && !crew.stream_names().is_empty()
    {
        let hindrance = hindrance.to_string();
        tools.emit(LeaseEvent::YieldedToKcl3 { hindrance: hindrance.clone() });
        crew.stand_down(CoordinatorStartError::TableInUse { hindrance });
    }
    Some(survey)
}

async fn probe_once<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
) -> Result<KclProbe, CoordinatorStartError> {
    loop {
        match tools.read_store(tools.store.probe()).await {
            Ok(survey) => return Ok(survey),
            Err(error) => check_store_retryable(tools, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}
