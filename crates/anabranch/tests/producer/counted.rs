//! The producer's metrics: what the KPL's users know, under names of our own.

use crate::stage::{STREAM, Stage};
use anabranch::producer::Producer;
use anabranch_local::fault::{Effect, FaultRule};
use anabranch_local::op::Operation;
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keeps everything, by name and labels.
#[derive(Default)]
struct Kept {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Samples>>>,
}

#[derive(Default)]
struct Samples(Mutex<Vec<f64>>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn text(key: &Key) -> String {
    let labels: Vec<String> =
        key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
    format!("{} {}", key.name(), labels.join(" "))
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut kept = self.counters.lock().unwrap();
        Counter::from_arc(Arc::clone(kept.entry(text(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut kept = self.gauges.lock().unwrap();
        Gauge::from_arc(Arc::clone(kept.entry(text(key)).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut kept = self.histograms.lock().unwrap();
        Histogram::from_arc(Arc::clone(kept.entry(text(key)).or_default()))
    }
}

impl Kept {
    fn counter(&self, name: &str) -> u64 {
        let kept = self.counters.lock().unwrap();
        kept.get(name).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn samples(&self, name: &str) -> Vec<f64> {
        let kept = self.histograms.lock().unwrap();
        kept.get(name).map_or(Vec::new(), |samples| samples.0.lock().unwrap().clone())
    }
}

#[tokio::test]
async fn what_the_kpl_counts_is_counted() {
    let kept = Kept::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let stage = Stage::new(1);
    stage.engine.faults().add(FaultRule {
        operation: Some(Operation::PutRecords),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: Some(2),
        effect: Effect::ThrottleEntries,
    });
    let producer = Producer::new(STREAM)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
        .with_events(anabranch::metrics::listener())
        .start(stage.api())
        .await
        .unwrap();
    // Once the map is there, ten records travel together.
    assert!(producer.put("first", "x").await.unwrap().await.is_placed());
    for number in 0..10 {
        drop(producer.put(format!("k{number}"), "12345").await.unwrap());
    }
    producer.flush().await;
    let shard = "stream=orders shard=shardId-000000000000";
    let count =
        |name: &str, labels: &str| kept.counter(&format!("anabranch_producer_{name} {labels}"));
    assert_eq!(count("records_received", "stream=orders"), 11);
    assert_eq!(count("records_put", shard), 11);
    assert_eq!(count("bytes_put", shard), 51);
    let containers = count("containers_put", shard);
    assert!((2..11).contains(&containers), "{containers} containers of 11 records");
    let samples =
        |name: &str, labels: &str| kept.samples(&format!("anabranch_producer_{name} {labels}"));
    let errors = kept.counters.lock().unwrap();
    let errors: u64 = errors
        .iter()
        .filter(|(name, _)| name.contains("errors") && name.contains("code=Throttled"))
        .map(|(_, count)| count.load(Ordering::Relaxed))
        .sum();
    assert_eq!(errors, 2, "two throttled containers");
    let retries = samples("retries_per_record", shard);
    assert_eq!(retries.len() as u64, containers);
    assert!((retries.iter().sum::<f64>() - 2.0).abs() < 0.01, "{retries:?}");
    assert_eq!(samples("buffering_ms", shard).len() as u64, containers);
    let requests = samples("request_ms", "stream=orders").len();
    assert_eq!(requests as u64, containers + 2);
    assert_eq!(samples("records_per_request", "stream=orders").len(), requests);
    let per: f64 = samples("records_per_container", shard).iter().sum();
    assert!((per - 11.0).abs() < 0.01);
    let pending = kept.gauges.lock().unwrap()["anabranch_producer_records_pending stream=orders"]
        .load(Ordering::Relaxed);
    assert!(f64::from_bits(pending).abs() < 0.01, "nothing is pending");
}
