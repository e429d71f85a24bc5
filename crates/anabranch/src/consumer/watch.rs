//! The watcher: one task that looks at every shard of the worker, tells what stands still, has it
//! restarted or given back, and now and then tells the figures.

use super::health::Health;
use super::vitals::{Order, Vitals};
use crate::clock::Clock;
use crate::event::{Events, ShardEvent};
use anabranch_model::lease::LeaseKey;
use anabranch_model::watch::{Watch, WatchLimits};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pause between two looks.
const LOOK_MS: u64 = 1_000;

/// What the watcher works with.
pub(super) struct Watcher {
    /// The shards.
    pub(super) health: Health,
    /// What is allowed.
    pub(super) limits: WatchLimits,
    /// How often the figures are told.
    pub(super) figures_ms: u64,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// Who wants to know.
    pub(super) events: Events,
}

/// What the watcher remembers of a shard.
struct Watched {
    /// The shard as this worker holds it now; taken again, it is another one.
    vitals: Arc<Vitals>,
    /// The watch over it.
    watch: Watch,
}

impl Watcher {
    /// Looks for ever.
    pub(super) async fn run(self) {
        let mut watched: BTreeMap<_, Watched> = BTreeMap::new();
        let mut figures_ms = self.clock.now_ms().saturating_add(self.figures_ms);
        loop {
            self.clock.sleep(LOOK_MS).await;
            let now_ms = self.clock.now_ms();
            let shards = self.health.vitals();
            // The shards stand in the order of their keys.
            watched.retain(|key: &Arc<LeaseKey>, known| {
                let at = shards.binary_search_by(|now| now.shard.cmp(key));
                at.is_ok_and(|at| Arc::ptr_eq(&shards[at], &known.vitals))
            });
            let tell = now_ms >= figures_ms;
            if tell {
                figures_ms = now_ms.saturating_add(self.figures_ms);
            }
            for vitals in shards {
                let shard = Arc::clone(&vitals.shard);
                let known = watched
                    .entry(shard)
                    .or_insert_with(|| Watched { vitals, watch: Watch::new(self.limits.clone()) });
                self.look(known, now_ms);
                if tell {
                    self.events.emit(known.vitals.figures(self.clock.wall_ms()));
                }
            }
        }
    }

    fn look(&self, known: &mut Watched, now_ms: u64) {
        let Watched { vitals, watch, .. } = known;
        let stuck = vitals.see(|sight| watch.look(now_ms, sight));
        let standing = watch.standing(now_ms, vitals.step().phase());
        vitals.set_stuck(standing.map(|(phase, for_ms)| (phase, now_ms.saturating_sub(for_ms))));
        let Some(stuck) = stuck else { return };
        let (shard, phase) = (Arc::clone(&vitals.shard), stuck.phase);
        let (for_ms, remedy) = (stuck.for_ms, stuck.remedy);
        self.events.emit(ShardEvent::Stuck { shard, phase, for_ms, remedy });
        if let Some(order) = Order::of(phase, remedy) {
            vitals.order(order);
        }
    }
}
