//! Flaws between the consumer and its handler: they alter the handler's input and result, as if one
//! of the earlier rules were broken.

use super::consumer::ConsumerFlaw;
use anabranch::consumer::{Batch, Delivery, HandlerError};
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// An intermittent flaw affects one in this many records.
const NOW_AND_THEN: u64 = 8;

/// Applies a flaw between the consumer of one worker run and its handler.
#[derive(Debug)]
pub struct FlawedHandler {
    /// The broken rule.
    flaw: ConsumerFlaw,
    /// Sessions of each shard.
    sessions: Mutex<BTreeMap<Arc<LeaseKey>, TermSessions>>,
    /// Calls that still run after their record was acknowledged.
    early: Mutex<JoinSet<Result<(), HandlerError>>>,
}

/// Sessions of one shard, by their lease terms.
#[derive(Debug, Default)]
struct TermSessions {
    /// Term of the newest session.
    newest: Option<u64>,
    /// Term of the session before it.
    before: Option<u64>,
    /// Furthest record that any of them delivered.
    furthest: Option<Position>,
    /// Number of deliveries of the newest session, or of all batches.
    count: u64,
    /// A record that is held back until another one was handled.
    waits: Option<Delivery>,
}

impl FlawedHandler {
    /// Creates the state of a new worker run.
    pub fn new(flaw: ConsumerFlaw) -> Self {
        Self { flaw, sessions: Mutex::default(), early: Mutex::default() }
    }

    /// Returns the deliveries that the handler gets in place of this one, in order.
    pub fn given(&self, mut delivery: Delivery) -> Vec<Delivery> {
        if self.flaw == ConsumerFlaw::None {
            return vec![delivery];
        }
        let mut sessions = self.sessions();
        let sessions = sessions.entry(Arc::clone(&delivery.shard)).or_default();
        if sessions.newest != delivery.lease_term {
            sessions.before = std::mem::replace(&mut sessions.newest, delivery.lease_term);
            (sessions.count, sessions.waits) = (0, None);
        }
        sessions.count += 1;
        let shows = sessions.count.is_multiple_of(NOW_AND_THEN);
        match self.flaw {
            ConsumerFlaw::OldSessionGoesOn => {
                // The previous session is still there, and is ahead of the newest.
                let at = Some(delivery.position());
                if at > sessions.furthest {
                    sessions.furthest = at;
                    delivery.lease_term = sessions.before.or(delivery.lease_term);
                }
                vec![delivery]
            }
            ConsumerFlaw::SkipsARecord if shows => Vec::new(),
            ConsumerFlaw::DeliversTwice if shows => vec![delivery.clone(), delivery],
            ConsumerFlaw::SwapsNeighbours if shows => {
                sessions.waits = Some(delivery);
                Vec::new()
            }
            _ => std::iter::once(delivery).chain(sessions.waits.take()).collect(),
        }
    }

    /// Returns the batch that the handler gets in place of this one.
    pub fn given_batch(&self, mut batch: Batch) -> Batch {
        let mut sessions = self.sessions();
        let sessions = sessions.entry(Arc::clone(&batch.shard)).or_default();
        sessions.count += 1;
        if !sessions.count.is_multiple_of(NOW_AND_THEN) {
            return batch;
        }
        let last = batch.records.len().saturating_sub(1);
        match self.flaw {
            ConsumerFlaw::SkipsARecord => drop(batch.records.pop()),
            ConsumerFlaw::DeliversTwice => batch.records.extend(batch.records.last().cloned()),
            ConsumerFlaw::SwapsNeighbours if last > 0 => batch.records.swap(last - 1, last),
            _ => {}
        }
        batch
    }

    /// Returns the result of a handler call as the consumer sees it.
    pub async fn handler_result(
        &self,
        call: impl Future<Output = Result<(), HandlerError>> + Send + 'static,
    ) -> Result<(), HandlerError> {
        match self.flaw {
            ConsumerFlaw::SkipsWhatFailed => call.await.or(Ok(())),
            ConsumerFlaw::AcksBeforeItIsDone => {
                let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
                early.spawn(call);
                Ok(())
            }
            _ => call.await,
        }
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Arc<LeaseKey>, TermSessions>> {
        // Each change is a few plain assignments, so a panic leaves no partial change.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
