//! The producer's metrics: those that KPL users know, under this library's names.

use crate::stage::{ProducerFixture, STREAM};
use anabranch::clock::Rng;
use anabranch::event::Events;
use anabranch::producer::{Aggregation, Producer};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Records all metrics by name and labels.
#[derive(Default)]
struct RecordedMetrics {
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

impl Recorder for RecordedMetrics {
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

impl RecordedMetrics {
    fn counter(&self, name: &str) -> u64 {
        let kept = self.counters.lock().unwrap();
        kept.get(name).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn gauge(&self, name: &str) -> f64 {
        let kept = self.gauges.lock().unwrap();
        f64::from_bits(kept[name].load(Ordering::Relaxed))
    }

    fn samples(&self, name: &str) -> Vec<f64> {
        let kept = self.histograms.lock().unwrap();
        kept.get(name).map_or(Vec::new(), |samples| samples.0.lock().unwrap().clone())
    }
}

#[tokio::test]
async fn what_the_kpl_counts_is_counted() {
    let kept = RecordedMetrics::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let stage = ProducerFixture::new(1);
    stage.engine.faults().add(FaultRule {
        operation: Some(Operation::PutRecords),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: Some(2),
        effect: FaultEffect::ThrottleEntries,
    });
    let producer = Producer::new(STREAM)
        .with_id("till-3")
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
        .with_events(anabranch::metrics::listener())
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    // Once the shard map is known, ten records are sent together.
    assert!(producer.put("first", "x").await.unwrap().await.is_placed());
    for number in 0..10 {
        drop(producer.put(format!("k{number}"), "12345").await.unwrap());
    }
    producer.flush().await;
    let all = "stream=orders producer=till-3";
    let shard = "stream=orders shard=shardId-000000000000 producer=till-3";
    let count =
        |name: &str, labels: &str| kept.counter(&format!("anabranch_producer_{name} {labels}"));
    assert_eq!(count("user_records_received_total", all), 11);
    assert_eq!(count("user_records_put_total", shard), 11);
    assert_eq!(count("user_records_put_bytes_total", shard), 51);
    let kinesis_records = count("kinesis_records_put_total", shard);
    assert!((2..11).contains(&kinesis_records), "{kinesis_records} for 11 user records");
    let samples =
        |name: &str, labels: &str| kept.samples(&format!("anabranch_producer_{name} {labels}"));
    let errors = kept.counters.lock().unwrap();
    let errors: u64 = errors
        .iter()
        .filter(|(name, _)| name.contains("errors_total") && name.contains("code=throttled"))
        .map(|(_, count)| count.load(Ordering::Relaxed))
        .sum();
    assert_eq!(errors, 2, "two throttled Kinesis records");
    let retries = samples("retries_per_kinesis_record", shard);
    assert_eq!(retries.len() as u64, kinesis_records);
    assert!((retries.iter().sum::<f64>() - 2.0).abs() < 0.01, "{retries:?}");
    assert_eq!(samples("buffering_duration_seconds", shard).len() as u64, kinesis_records);
    let requests = samples("request_duration_seconds", all).len();
    assert_eq!(requests as u64, kinesis_records + 2);
    assert_eq!(samples("user_records_per_request", all).len(), requests);
    let per: f64 = samples("user_records_per_kinesis_record", shard).iter().sum();
    assert!((per - 11.0).abs() < 0.01);
    assert!(kept.gauge(&format!("anabranch_producer_user_records_pending {all}")).abs() < 0.01);
}

#[tokio::test]
async fn records_that_fail_are_counted_and_no_longer_pending() {
    let kept = RecordedMetrics::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let stage = ProducerFixture::new(1);
    let builder = || {
        Producer::new(STREAM)
            .with_aggregation(Aggregation::Off)
            .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
            .with_events(anabranch::metrics::listener())
    };
    let failed = |producer: &Producer, reason: &str| {
        let labels = format!("stream=orders reason={reason} producer={}", producer.id());
        kept.counter(&format!("anabranch_producer_user_records_failed_total {labels}"))
    };
    let pending = |producer: &Producer| {
        let id = producer.id();
        kept.gauge(&format!("anabranch_producer_user_records_pending stream=orders producer={id}"))
    };
    // Two producers of one stream, distinguished by their random ids.
    let [one, other] = [
        builder().with_kinesis(stage.api()).start().await.unwrap(),
        builder().with_kinesis(stage.api()).start().await.unwrap(),
    ];
    assert_ne!(one.id(), other.id());
    stage.fault(Operation::PutRecords, FaultEffect::DropReply, 1.0);
    for number in 0..3 {
        drop(other.put(format!("k{number}"), "x").await.unwrap());
    }
    other.close(Duration::from_millis(100)).await;
    stage.engine.faults().clear();
    stage.delete();
    for number in 0..4 {
        drop(one.put(format!("k{number}"), "x").await.unwrap());
    }
    one.flush().await;
    drop(one.put("k0", "x").await.unwrap());
    one.flush().await;
    assert_eq!((failed(&one, "refused"), failed(&one, "key_stopped")), (4, 1));
    assert_eq!((failed(&other, "unknown"), failed(&other, "refused")), (3, 0));
    assert!(pending(&one).abs() < 0.01 && pending(&other).abs() < 0.01, "nothing is pending");
    assert_eq!(one.stats().errors, 4, "each container of a call that failed");
    stage.create(1, None);
    // Records that a dropped producer never processed are reported, and are not pending either.
    let third = builder().with_id("dropped").with_kinesis(stage.api()).start().await.unwrap();
    drop(third.try_put("a", "1").unwrap());
    drop(third);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let closed =
        "anabranch_producer_user_records_failed_total stream=orders reason=closed producer=dropped";
    assert_eq!(kept.counter(closed), 1);
    let left = kept.gauge("anabranch_producer_user_records_pending stream=orders producer=dropped");
    assert!(left.abs() < 0.01);
}

#[tokio::test]
async fn an_id_is_given_or_drawn_and_stands_in_every_event() {
    let stage = ProducerFixture::new(1);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let events = Events::new(move |event| listener.lock().unwrap().push(format!("{event:?}")));
    let builder = || Producer::new(STREAM).with_rng(Rng::seeded(9));
    let producer = builder()
        .with_id("till-3")
        .with_events(events)
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    assert!(producer.put("a", "1").await.unwrap().await.is_placed());
    producer.close(Duration::from_secs(5)).await;
    let told = std::mem::take(&mut *told.lock().unwrap());
    assert!(told.len() >= 4, "{told:?}");
    assert!(told.iter().all(|event| event.contains("producer: till-3")), "{told:?}");
    let drawn = builder().with_kinesis(stage.api()).start().await.unwrap();
    assert_eq!(drawn.id().as_str().len(), 16);
    let again = builder().with_kinesis(stage.api()).start().await.unwrap();
    assert_eq!(drawn.id(), again.id(), "drawn from the chance that was given");
    for id in [String::new(), "x".repeat(129)] {
        let error = builder().with_id(id).with_kinesis(stage.api()).start().await.unwrap_err();
        assert!(error.to_string().contains("id: "), "{error}");
    }
}

#[tokio::test]
async fn shards_that_are_paused_are_counted_with_the_refusals_that_paused_them() {
    let kept = RecordedMetrics::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM)
        .with_id("p")
        .with_refusal_backoff(Duration::from_millis(5)..=Duration::from_millis(20))
        .with_events(anabranch::metrics::listener())
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    let rule = stage.fault(Operation::PutRecords, FaultEffect::Deny, 1.0);
    let ticket = producer.put("a", "1").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let paused = || kept.gauge("anabranch_producer_paused_shards stream=orders producer=p");
    assert!((paused() - 1.0).abs() < 0.01);
    let code = "stream=orders shard=shardId-000000000000 code=access_denied producer=p";
    assert!(kept.counter(&format!("anabranch_producer_errors_total {code}")) > 1);
    stage.engine.faults().remove(rule);
    assert!(ticket.await.is_placed());
    assert!(paused().abs() < 0.01);
}
