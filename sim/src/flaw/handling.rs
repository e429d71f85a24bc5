//! Between the consumer and its handler: what the handler gets, as if one of the rules before it were
//! broken.

use super::consumer::ConsumerFlaw;
use anabranch::consumer::Delivery;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The way from one life's consumer to its handler.
#[derive(Debug)]
pub struct Handling {
    /// The broken rule.
    flaw: ConsumerFlaw,
    /// The sessions of each shard.
    sessions: Mutex<BTreeMap<Arc<LeaseKey>, Sessions>>,
}

/// The sessions of one shard, by the terms under which they deliver.
#[derive(Debug, Default)]
struct Sessions {
    /// The term of the newest.
    newest: Option<u64>,
    /// The term of the session before it.
    before: Option<u64>,
    /// The furthest record that any of them delivered.
    furthest: Option<Position>,
}

impl Handling {
    /// The way of a new life.
    pub fn new(flaw: ConsumerFlaw) -> Self {
        Self { flaw, sessions: Mutex::default() }
    }

    /// A delivery as the handler gets it.
    pub fn given(&self, mut delivery: Delivery) -> Delivery {
        if self.flaw == ConsumerFlaw::OldSessionGoesOn {
            let mut sessions = self.sessions();
            let sessions = sessions.entry(Arc::clone(&delivery.shard)).or_default();
            if sessions.newest != delivery.lease_term {
                sessions.before = std::mem::replace(&mut sessions.newest, delivery.lease_term);
            }
            // The session before is still there, and further ahead than the newest.
            let at = Some(delivery.position());
            if at > sessions.furthest {
                sessions.furthest = at;
                delivery.lease_term = sessions.before.or(delivery.lease_term);
            }
        }
        delivery
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Arc<LeaseKey>, Sessions>> {
        // Each change is a few plain assignments, so a panic leaves no half of one.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
