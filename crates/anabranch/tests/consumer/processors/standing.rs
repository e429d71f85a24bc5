//! Processors that get stuck in a callback about their shard: detected like a stuck handler.

use super::script::{ProcessorScript, processors, staged};
use crate::watchdog::short;
use crate::world::{ConsumerFixture, RunningWorker};
use anabranch::consumer::{Health, ReadPhase, WatchdogAction};
use anabranch::event::{Event, ShardEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const HOUR_MS: u64 = 3_600_000;

type SlowProcessor = fn(&ProcessorScript) -> &AtomicU64;

/// Calls that can get stuck: the name of each, and the setting of its duration.
const CALLS: [(&str, SlowProcessor); 2] =
    [("initialize", |script| &script.start_ms), ("shard_ended", |script| &script.end_ms)];

/// Prepares a closed shard with records in its children too, and a worker whose next call of this
/// kind takes `ms`. `restarts` are allowed before the shard is released; `None` forbids dropping a
/// call.
fn stage(
    slow: SlowProcessor,
    ms: u64,
    restarts: Option<u32>,
) -> (ConsumerFixture, Arc<ProcessorScript>, RunningWorker, Health) {
    let (world, script) = staged(|script| slow(script).store(ms, Ordering::SeqCst));
    world.split(0);
    world.put_round(10);
    let consumer = world.consumer(1).with_settings(|settings| {
        short(settings);
        settings.watchdog.drop_handlers = restarts.is_some();
        settings.watchdog.restarts = restarts.unwrap_or_default();
    });
    let consumer = consumer.processors(processors(&script, "one"));
    let health = consumer.health();
    (world, script, RunningWorker::start(consumer), health)
}

#[tokio::test(start_paused = true)]
async fn a_start_or_an_end_that_hangs_is_told_and_shown_as_a_handler_is() {
    for (call, slow) in CALLS {
        let (world, script, worker, health) = stage(slow, 30_000, None);
        world
            .until("it is told", || world.stuck(ReadPhase::Handler, WatchdogAction::Report) == 2)
            .await;
        assert_eq!(script.count(call), 1, "{call} is not dropped");
        let shards = health.shards();
        let stuck = shards.iter().find(|shard| shard.stuck.is_some()).expect(call);
        assert_eq!(stuck.phase, Some(ReadPhase::Handler), "{call}");
        assert!(
            matches!(stuck.stuck, Some((ReadPhase::Handler, for_ms)) if for_ms >= 10_000),
            "{call}"
        );
        world.until_all_seen().await;
        world.until("it is well", || health.shards().iter().all(|it| it.stuck.is_none())).await;
        worker.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 0, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_or_an_end_that_hangs_and_may_be_dropped_comes_again() {
    for (name, slow) in CALLS {
        for restarts in [2, 0] {
            let (world, script, worker, _) = stage(slow, HOUR_MS, Some(restarts));
            world.until_all_seen().await;
            worker.stop().await;
            world.oracle.check();
            assert_eq!(world.oracle.duplicates(), 0, "{name}");
            assert_eq!(script.count(&format!("0 {name}")), 2, "{:?}", script.calls());
            let dropped = |event: &Event| {
                matches!(event, Event::Shard(ShardEvent::CallbackFailed { call, error, .. })
                    if *call == name && error.contains("interrupted"))
            };
            assert!(world.told(dropped) || world.released(), "{name}");
            assert_eq!(world.released(), restarts == 0, "{name} with {restarts} restarts");
            let remedy =
                if restarts == 0 { WatchdogAction::Release } else { WatchdogAction::Restart };
            assert_eq!(world.stuck(ReadPhase::Handler, remedy), 1, "{name}");
        }
    }
}
