//! Tests of the values passed to a recorder.

use super::*;
use crate::event::{LeaseEvent, ShardEvent, ShardStopReason};
use anabranch_model::lease::LeaseKey;
use anabranch_model::stuck_detector::{ReadPhase, WatchdogAction};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Recorder that stores every value by name and labels.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<String, f64>>>);

/// One value of a book.
struct Entry {
    book: Book,
    name: String,
}

impl Entry {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(self.book.0.lock().unwrap().entry(self.name.clone()).or_default());
    }
}

#[expect(clippy::cast_precision_loss, reason = "the tests count to ten")]
impl CounterFn for Entry {
    fn increment(&self, value: u64) {
        self.change(|now| *now += value as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|now| *now = value as f64);
    }
}

impl GaugeFn for Entry {
    fn increment(&self, value: f64) {
        self.change(|now| *now += value);
    }

    fn decrement(&self, value: f64) {
        self.change(|now| *now -= value);
    }

    fn set(&self, value: f64) {
        self.change(|now| *now = value);
    }
}

impl HistogramFn for Entry {
    fn record(&self, value: f64) {
        self.change(|now| *now = value);
    }
}

impl Book {
    fn entry(&self, key: &Key) -> Arc<Entry> {
        let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        let name = format!("{} {}", key.name(), labels.join(","));
        Arc::new(Entry { book: self.clone(), name: name.trim().to_owned() })
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.entry(key))
    }
}

#[test]
fn events_become_metrics_with_the_stream_and_shard_as_labels() {
    let shard = || Arc::new(LeaseKey::new("s", "shardId-000000000001"));
    let metrics_event = |records, behind_ms| ShardEvent::Metrics {
        shard: shard(),
        records,
        bytes: 10 * records,
        calls: 2,
        busy: Duration::from_millis(30),
        behind_latest: Some(Duration::from_millis(behind_ms)),
        age: Some(Duration::from_millis(7)),
    };
    let stuck = ShardEvent::Stuck {
        shard: shard(),
        phase: ReadPhase::Fetch,
        stuck_for: Duration::from_mins(1),
        action: WatchdogAction::Restart,
    };
    let from =
        anabranch_model::lease::Checkpoint::at(anabranch_model::position::Position::TrimHorizon);
    let book = Book::default();
    let events = listener();
    metrics::with_local_recorder(&book, || {
        events.emit(ShardEvent::Started { shard: shard(), from });
        events.emit(metrics_event(3, 900));
        events.emit(metrics_event(4, 500));
        events.emit(stuck);
        events.emit(LeaseEvent::LeaseLost { lease: (*shard()).clone() });
    });
    let read = |name: &str| book.0.lock().unwrap().get(name).copied();
    let of = |name: &str| read(&format!("{name} stream=s,shard=shardId-000000000001"));
    assert_eq!(of("anabranch_consumer_user_records_processed_total"), Some(7.0));
    assert_eq!(of("anabranch_consumer_user_records_processed_bytes_total"), Some(70.0));
    assert_eq!(of("anabranch_consumer_behind_latest_seconds"), Some(0.5));
    assert_eq!(of("anabranch_consumer_record_age_seconds"), Some(0.007));
    assert_eq!(of("anabranch_consumer_handler_duration_seconds"), Some(0.015));
    let all = book.0.lock().unwrap().keys().cloned().collect::<Vec<_>>().join("\n");
    let labels = "stream=s,shard=shardId-000000000001,phase=fetch";
    assert_eq!(read(&format!("anabranch_consumer_stuck_seconds {labels}")), Some(60.0), "{all}");
    let labels = format!("{labels},action=restart");
    assert_eq!(read(&format!("anabranch_consumer_stuck_total {labels}")), Some(1.0), "{all}");
    assert_eq!(read("anabranch_leases_lost_total stream=s"), Some(1.0), "{all}");
    assert_eq!(read("anabranch_consumer_shards stream=s"), Some(1.0));
    for why in [ShardStopReason::Failed, ShardStopReason::Stuck] {
        metrics::with_local_recorder(&book, || {
            events.emit(ShardEvent::Stopped { shard: shard(), why });
        });
        let lag = (
            of("anabranch_consumer_behind_latest_seconds"),
            of("anabranch_consumer_record_age_seconds"),
        );
        assert_eq!(lag, (Some(0.5), Some(0.007)), "nobody may be able to read it: {why:?}");
    }
    metrics::with_local_recorder(&book, || {
        events.emit(ShardEvent::Stopped { shard: shard(), why: ShardStopReason::Drained });
    });
    assert_eq!(read("anabranch_consumer_shards stream=s"), Some(-2.0));
    assert_eq!(
        of("anabranch_consumer_behind_latest_seconds"),
        Some(0.0),
        "no lag of a shard that was given up"
    );
}
