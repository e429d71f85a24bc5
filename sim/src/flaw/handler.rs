//! Between the consumer and its handler: what the handler gets and what comes back of it, as if one
//! of the rules before it were broken.

use super::consumer::ConsumerFlaw;
use anabranch::consumer::{Batch, Delivery, HandlerError};
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// A flaw that shows now and then shows at one record in so many.
const NOW_AND_THEN: u64 = 8;

/// The way from one life's consumer to its handler.
#[derive(Debug)]
pub struct FlawedHandler {
    /// The broken rule.
    flaw: ConsumerFlaw,
    /// The sessions of each shard.
    sessions: Mutex<BTreeMap<Arc<LeaseKey>, TermSessions>>,
    /// Calls that run on after their record was acknowledged.
    early: Mutex<JoinSet<Result<(), HandlerError>>>,
}

/// The sessions of one shard, by the terms under which they deliver.
#[derive(Debug, Default)]
struct TermSessions {
    /// The term of the newest.
    newest: Option<u64>,
    /// The term of the session before it.
    before: Option<u64>,
    /// The furthest record that any of them delivered.
    furthest: Option<Position>,
    /// Counts the deliveries of the newest, or all batches.
    count: u64,
    /// A record that waits until another one was handled.
    waits: Option<Delivery>,
}

impl FlawedHandler {
    /// The way of a new life.
    pub fn new(flaw: ConsumerFlaw) -> Self {
        Self { flaw, sessions: Mutex::default(), early: Mutex::default() }
    }

    /// The deliveries that the handler gets in place of this one, in order.
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
                // The session before is still there, and further ahead than the newest.
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

    /// The batch that the handler gets in place of this one.
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

    /// What the consumer hears of a call of the handler.
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
        // Each change is a few plain assignments, so a panic leaves no half of one.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
