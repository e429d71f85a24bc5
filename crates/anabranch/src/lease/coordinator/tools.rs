//! What every part of a coordinator works with.

use super::Settings;
use crate::clock::{Chance, Clock};
use crate::event::{Events, LeaseEvent};
use crate::lease::settle::{Settled, Settling};
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::lease::Write;
use std::sync::Arc;

/// What every part of a coordinator works with.
#[derive(Debug)]
pub(crate) struct Tools<S, A> {
    /// Where the leases are kept.
    pub(crate) store: Arc<S>,
    /// The streams.
    pub(crate) api: Arc<A>,
    /// What the coordinator was told.
    pub(crate) settings: Settings,
    /// The worker's clock.
    pub(crate) clock: Clock,
    /// The worker's chance.
    pub(crate) chance: Chance,
    /// Who wants to know.
    pub(crate) events: Events,
}

impl<S: LeaseStore, A> Tools<S, A> {
    /// Tells whoever listens.
    pub(crate) fn tell(&self, event: LeaseEvent) {
        self.events.emit(event);
    }

    /// Tells that the store did not do what it was asked.
    pub(crate) fn trouble(&self, what: &'static str, error: &StoreError) {
        self.tell(LeaseEvent::StoreTrouble { what, error: error.to_string() });
    }

    /// Carries a write to its end, or until the moment that `until_ms` gives.
    pub(crate) async fn settle(&self, write: &Write, until_ms: impl Fn() -> u64) -> Settled {
        let (clock, chance) = (&self.clock, &self.chance);
        let settling = Settling { clock, chance, call_ms: self.settings.call_ms };
        settling.settle(&*self.store, write, until_ms).await
    }

    /// Makes one attempt at a write. What became of an attempt without an answer, the next look
    /// shows.
    pub(crate) async fn attempt(&self, write: &Write) -> Settled {
        self.settle(write, || 0).await
    }
}
