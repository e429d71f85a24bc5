//! Records that pass retention before they are read: reported, with the positions around the gap.

use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::{Delivery, FetchMode};
use anabranch::event::{Event, ShardEvent};
use anabranch_local::Clock;
use anabranch_model::position::Position;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HOUR_MS: u64 = 3_600_000;

/// Lets time pass for the stream and the workers, in steps shorter than the lease time.
async fn pass(clock: &Clock, ms: u64) {
    let step_ms = HOUR_MS / 6;
    for _ in 0..ms / step_ms {
        clock.advance(step_ms);
        tokio::time::advance(Duration::from_millis(step_ms)).await;
        pause(1).await;
    }
}

impl ConsumerFixture {
    /// Returns the reported gaps.
    fn gaps(&self) -> Vec<(Position, Option<Position>)> {
        let gap = |event: &Event| match event {
            Event::Shard(ShardEvent::RetentionGap { after, to, .. }) => Some((*after, *to)),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(gap).collect()
    }

    fn put_many(&self, key: &str, count: usize) {
        (0..count).for_each(|_| self.put_data(key, b"x"));
    }
}

/// Handled records: the key and the position.
type Handled = Arc<Mutex<Vec<(String, Position)>>>;

fn handled(of: &Handled, key: &str) -> Vec<Position> {
    let of = of.lock().unwrap();
    of.iter().filter(|(it, _)| it == key).map(|(_, at)| *at).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_slow_handler_leaves_unread_for_longer_than_retention_is_told() {
    for fetch in [FetchMode::Poll, FetchMode::FanOut] {
        let clock = Clock::manual(1_700_000_000_000);
        let world = ConsumerFixture::by(clock.clone(), 1);
        let (seen, hangs) = (Handled::default(), Arc::new(AtomicBool::new(true)));
        let (note, hang) = (Arc::clone(&seen), Arc::clone(&hangs));
        let consumer = world.consumer(1).with_settings(|settings| {
            settings.fetch = fetch;
            settings.lane_records = 1;
            settings.watchdog.handler_ms = 24 * HOUR_MS;
            settings.lease_time = Duration::from_millis(HOUR_MS);
        });
        let worker = RunningWorker::start(consumer.each(move |record: Delivery| {
            let (note, hang) = (Arc::clone(&note), Arc::clone(&hang));
            async move {
                while hang.load(Ordering::Relaxed) {
                    pause(60_000).await;
                }
                let key = record.partition_key.to_string();
                note.lock().unwrap().push((key, record.position()));
                Ok::<(), std::convert::Infallible>(())
            }
        }));
        // More than the lane holds, so that no more is requested.
        world.put_many("first", 300);
        pause(10_000).await;
        world.put_many("never", 5);
        pass(&clock, 23 * HOUR_MS).await;
        assert_eq!(world.gaps(), [], "nothing is past retention yet");
        pass(&clock, 2 * HOUR_MS).await;
        world.put_many("last", 5);
        hangs.store(false, Ordering::Relaxed);
        world.until("the last ones come", || handled(&seen, "last").len() == 5).await;
        worker.stop().await;
        assert_eq!(handled(&seen, "never"), [], "they are past retention");
        let (before, behind) = (handled(&seen, "first"), handled(&seen, "last"));
        let gap = (*before.last().unwrap(), behind.first().copied());
        assert_eq!(world.gaps(), [gap], "{fetch:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_back_after_retention_tells_what_it_missed() {
    // Time without a reader; whether records arrive meanwhile; whether a gap is reported.
    for (away_ms, comes, told) in
        [(25 * HOUR_MS, true, true), (23 * HOUR_MS, true, false), (25 * HOUR_MS, false, false)]
    {
        let clock = Clock::manual(1_700_000_000_000);
        let world = ConsumerFixture::by(clock.clone(), 1);
        let seen = Handled::default();
        let worker = |seed| {
            let note = Arc::clone(&seen);
            RunningWorker::start(world.consumer(seed).each(move |record: Delivery| {
                let key = record.partition_key.to_string();
                note.lock().unwrap().push((key, record.position()));
                std::future::ready(Ok::<(), std::convert::Infallible>(()))
            }))
        };
        let first = worker(1);
        world.put_many("first", 10);
        world.until("they come", || handled(&seen, "first").len() == 10).await;
        first.stop().await;
        if comes {
            pause(1_000).await;
            world.put_many("between", 5);
        }
        pass(&clock, away_ms).await;
        if comes {
            world.put_many("last", 5);
        }
        let second = worker(2);
        pause(5_000).await;
        if !comes {
            world.put_many("last", 5);
        }
        world.until("they come", || handled(&seen, "last").len() == 5).await;
        second.stop().await;
        let last = handled(&seen, "first").last().copied().unwrap();
        let gap = (last, handled(&seen, "last").first().copied());
        let want = if told { vec![gap] } else { vec![] };
        assert_eq!(world.gaps(), want, "away for {away_ms} ms, records come: {comes}");
        let between = if comes && !told { 5 } else { 0 };
        assert_eq!(handled(&seen, "between").len(), between);
    }
}
