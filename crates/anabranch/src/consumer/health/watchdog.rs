//! The watchdog: one task that checks every shard of the worker, reports stuck shards, orders
//! restarts or releases, and periodically emits metrics.

use super::Health;
use super::telemetry::{ShardTelemetry, WatchdogOrder};
use crate::clock::Clock;
use crate::event::{Events, ShardEvent};
use anabranch_model::lease::LeaseKey;
use anabranch_model::stuck_detector::{StuckDetector, WatchdogLimits};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two checks, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// Configuration and context of the watchdog task.
pub(in crate::consumer) struct Watchdog {
    /// The shards to check.
    pub(in crate::consumer) health: Health,
    /// Limit per phase, and the action that follows.
    pub(in crate::consumer) limits: WatchdogLimits,
    /// Interval of metrics events, in milliseconds.
    pub(in crate::consumer) figures_ms: u64,
    pub(in crate::consumer) clock: Clock,
    pub(in crate::consumer) events: Events,
}

/// State that the watchdog keeps per shard.
struct WatchedShard {
    /// Telemetry of the current lease. A shard that is taken again has a new one, and is watched
    /// afresh.
    vitals: Arc<ShardTelemetry>,
    watch: StuckDetector,
}

impl Watchdog {
    /// Checks all shards at each interval, without end.
    pub(in crate::consumer) async fn run(self) {
        let mut watched: BTreeMap<_, WatchedShard> = BTreeMap::new();
        let mut figures_ms = self.clock.now_ms().saturating_add(self.figures_ms);
        loop {
            self.clock.sleep(LOOK_MS).await;
            let now_ms = self.clock.now_ms();
            let shards = self.health.telemetry();
            // The shards are sorted by key.
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
                let known = watched.entry(shard).or_insert_with(|| WatchedShard {
                    vitals,
                    watch: StuckDetector::new(self.limits.clone()),
                });
                self.check_all(known, now_ms);
                if tell {
                    self.events.emit(known.vitals.interval_totals(self.clock.wall_ms()));
                }
            }
        }
    }

    fn check_all(&self, known: &mut WatchedShard, now_ms: u64) {
        let WatchedShard { vitals, watch, .. } = known;
        let stuck = vitals.observe(|sight| watch.look(now_ms, sight));
        let standing = watch.stuck_phase(now_ms, vitals.step().phase());
        vitals.set_stuck(standing.map(|(phase, for_ms)| (phase, now_ms.saturating_sub(for_ms))));
        let Some(stuck) = stuck else { return };
        let (shard, phase) = (Arc::clone(&vitals.shard), stuck.phase);
        let (stuck_for, remedy) = (Duration::from_millis(stuck.for_ms), stuck.remedy);
        self.events.emit(ShardEvent::Stuck { shard, phase, stuck_for, action: remedy });
        if let Some(order) = WatchdogOrder::of(phase, remedy) {
            vitals.set_order(order);
        }
    }
}
