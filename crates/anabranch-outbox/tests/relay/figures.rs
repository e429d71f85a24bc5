//! Metrics of the relay: waiting rows, their age, sent rows and blocked keys.

use crate::stage::STREAM;
use crate::world::RelayFixture;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_outbox::OutboxTable;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Records every metric by name and table.
#[derive(Clone, Default)]
struct MetricsRecorder(Arc<Mutex<BTreeMap<String, f64>>>);

/// A handle to one metric of the recorder.
struct RecordedMetric {
    book: MetricsRecorder,
    name: String,
}

impl RecordedMetric {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(self.book.0.lock().unwrap().entry(self.name.clone()).or_default());
    }
}

#[expect(clippy::cast_precision_loss, reason = "the test counts to ten")]
impl CounterFn for RecordedMetric {
    fn increment(&self, value: u64) {
        self.change(|now| *now += value as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|now| *now = value as f64);
    }
}

impl GaugeFn for RecordedMetric {
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

impl MetricsRecorder {
    fn entry(&self, key: &Key) -> Arc<RecordedMetric> {
        let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        let name = format!("{} {}", key.name(), labels.join(","));
        Arc::new(RecordedMetric { book: self.clone(), name })
    }

    /// Waits until a metric of the table satisfies a condition.
    async fn until(&self, figure: &str, is_it: impl Fn(f64) -> bool) {
        let name = format!("anabranch_relay_{figure} table=public.metered,stream={STREAM}");
        for _ in 0..6_000 {
            if self.0.lock().unwrap().get(&name).copied().is_some_and(&is_it) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{name} has the wrong value: {:?}", self.0.lock().unwrap());
    }
}

impl Recorder for MetricsRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_in_rows_and_seconds_sent_rows_and_blocked_keys_are_reported() {
    let Some(mut world) = RelayFixture::bare() else { return };
    let book = MetricsRecorder::default();
    metrics::set_global_recorder(book.clone()).unwrap();
    // A unique name, because the recorder receives metrics from every relay of this program.
    world.table = OutboxTable::named("metered").unwrap();
    anabranch_outbox::init(&world.database(), &world.table, false).await.unwrap();
    let mut session = world.session().await;
    session
        .run(
            "INSERT INTO metered (partition_key, explicit_hash_key, data, created_at) VALUES \
             ('a', 'x', '1', now() - interval '3 hours'), ('a', NULL, '2', now()), \
             ('b', NULL, '3', now() - interval '1 hour'), ('b', NULL, '4', now())",
        )
        .await;
    world.stage.fault(Operation::PutRecords, FaultEffect::Throttle, 1.0);
    let relay = world.start(world.relay());
    book.until("blocked_keys", |keys| (keys - 1.0).abs() < 0.1).await;
    // Rows of the blocked key wait for an operator, not for the relay, and do not count.
    book.until("lag_rows", |rows| (rows - 2.0).abs() < 0.1).await;
    book.until("lag_seconds", |seconds| (3_600.0..7_200.0).contains(&seconds)).await;
    world.stage.engine.faults().clear();
    book.until("sent_rows_total", |rows| (rows - 2.0).abs() < 0.1).await;
    book.until("lag_rows", |rows| rows < 0.1).await;
    book.until("lag_seconds", |seconds| seconds < 0.1).await;
    session.run("UPDATE metered SET explicit_hash_key = NULL").await;
    anabranch_outbox::retry(&world.database(), &world.table, "a").await.unwrap().unwrap();
    book.until("blocked_keys", |keys| keys < 0.1).await;
    book.until("sent_rows_total", |rows| (rows - 4.0).abs() < 0.1).await;
    relay.stop().await.unwrap();
}
