//! A table that somebody else works on is left alone, at the start and later.

use super::crew::Crew;
use super::open::{PAUSE_MS, judge_store};
use super::{StartError, Tools};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::stream::api::StreamApi;
use anabranch_model::lease::survey::{Verdict, judge, left_to_kcl3};
use anabranch_model::lease::{Layout, Survey};

/// Looks at the table until it is clear or has to be refused. Only a table on which a fleet of KCL
/// 3.x has worked takes time. Returns what was seen last, and since when the leases have not moved
/// from there, by this worker's clock.
pub(super) async fn survey<S: LeaseStore, A>(
    tools: &Tools<S, A>,
) -> Result<(Survey, u64), StartError> {
    let first = look(tools).await?;
    let since_ms = tools.clock.now_ms();
    let (mut latest, mut elapsed_ms) = (first.clone(), 0);
    loop {
        match judge(&first, &latest, elapsed_ms, tools.settings.lease_time_ms) {
            Verdict::Clear => return Ok((latest, since_ms)),
            Verdict::Refuse(hindrance) => {
                return Err(StartError::TableInUse { hindrance: hindrance.to_string() });
            }
            Verdict::Wait { ms } => {
                if elapsed_ms == 0 {
                    let leader = latest.leader.as_ref().map(|leader| leader.owner.clone());
                    tools.tell(LeaseEvent::KeptOff { wait_ms: ms, leader });
                }
                // Whoever is at work shows it sooner.
                tools.clock.sleep(ms.min(tools.settings.lease_time_ms)).await;
            }
        }
        // Counted until the look begins, so that nothing is taken for longer than it was.
        elapsed_ms = tools.clock.now_ms() - since_ms;
        latest = look(tools).await?;
    }
}

/// Looks again while the worker is at work, and leaves the table to a fleet of KCL 3.x: its leader
/// deals the leases, and whoever takes them as 2.x does would fight it. Returns what was seen.
pub(super) async fn look_again<S: LeaseStore, A: StreamApi>(
    crew: &Crew<S, A>,
    start: &Survey,
) -> Option<Survey> {
    let tools = &crew.tools;
    if tools.store.layout() == Layout::Native {
        return None;
    }
    let survey = match tools.read(tools.store.survey()).await {
        Ok(survey) => survey,
        Err(error) => {
            tools.trouble("survey", &error);
            return None;
        }
    };
    if let Some(hindrance) = left_to_kcl3(start, &survey)
        && !crew.is_stopping()
        && !crew.stream_names().is_empty()
    {
        let hindrance = hindrance.to_string();
        tools.tell(LeaseEvent::StoodDown { hindrance: hindrance.clone() });
        crew.stand_down(StartError::TableInUse { hindrance });
    }
    Some(survey)
}

async fn look<S: LeaseStore, A>(tools: &Tools<S, A>) -> Result<Survey, StartError> {
    loop {
        match tools.read(tools.store.survey()).await {
            Ok(survey) => return Ok(survey),
            Err(error) => judge_store(tools, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}
