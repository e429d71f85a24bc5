//! A table that somebody else works on is left alone.

use super::open::{PAUSE_MS, judge_store};
use super::{StartError, Tools};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use anabranch_model::lease::Survey;
use anabranch_model::lease::survey::{Verdict, judge};

/// Looks at the table until it is clear or has to be refused. Only a table on which a fleet of KCL
/// 3.x has worked takes time.
pub(super) async fn survey<S: LeaseStore, A>(tools: &Tools<S, A>) -> Result<(), StartError> {
    let first = look(tools).await?;
    let since_ms = tools.clock.now_ms();
    let (mut latest, mut elapsed_ms) = (first.clone(), 0);
    loop {
        match judge(&first, &latest, elapsed_ms, tools.settings.lease_time_ms) {
            Verdict::Clear => return Ok(()),
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

async fn look<S: LeaseStore, A>(tools: &Tools<S, A>) -> Result<Survey, StartError> {
    loop {
        match tools.read(tools.store.survey()).await {
            Ok(survey) => return Ok(survey),
            Err(error) => judge_store(tools, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}
