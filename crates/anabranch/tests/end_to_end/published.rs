//! Metrics to CloudWatch over HTTP, with the AWS SDK and the local stream's `PutMetricData`.

use anabranch::cloudwatch::{CloudWatch, MetricsLevel, PublishStats};
use anabranch::event::{Events, LeaseEvent, ShardEvent, ShardStopReason};
use anabranch_local::Local;
use anabranch_model::lease::{Checkpoint, LeaseKey, WorkerId};
use anabranch_model::position::Position;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Emits the events of a worker during ten seconds.
fn tell(events: &Events) {
    let shard = |n| Arc::new(LeaseKey::new("orders", format!("shardId-00000000000{n}")));
    let from = || Checkpoint::at(Position::TrimHorizon);
    events.emit(LeaseEvent::Joined { worker: WorkerId::from("mailer-1".to_owned()) });
    for (workers, leases) in [(1, 3), (4, 9)] {
        events.emit(LeaseEvent::FleetChanged { workers, leases });
    }
    for n in 0..3 {
        let (lease, worker) = ((*shard(n)).clone(), WorkerId::from("mailer-1".to_owned()));
        events.emit(LeaseEvent::LeaseTaken { lease, worker, term: 1 });
        events.emit(ShardEvent::Started { shard: shard(n), from: from() });
    }
    events.emit(ShardEvent::Stopped { shard: shard(2), why: ShardStopReason::Lost });
    events.emit(LeaseEvent::LeaseLost { lease: (*shard(2)).clone() });
    events.emit(ShardEvent::IteratorRenewed { shard: shard(1) });
    for (n, records, behind_ms) in [(0, 5, 1_000), (0, 7, 3_000), (1, 1, 0)] {
        let behind_latest = Duration::from_millis(behind_ms);
        events.emit(ShardEvent::Fetched {
            shard: shard(n),
            records: 1,
            behind_latest,
            took: Some(behind_latest / 100),
        });
        events.emit(ShardEvent::Checkpointed { shard: shard(n), at: from() });
        events.emit(ShardEvent::Metrics {
            shard: shard(n),
            records,
            bytes: 100 * records,
            calls: 2,
            busy: Duration::from_millis(40),
            behind_latest: Some(behind_latest),
            age: Some(behind_latest),
        });
    }
}

/// Maps `Operation/ShardId/WorkerIdentifier Metric` to count, sum, minimum and maximum.
fn read(local: &Local) -> BTreeMap<String, [f64; 4]> {
    let data = local.metric_data();
    let read = |datum: &Value| {
        assert_eq!(datum["Namespace"], "mailer", "{datum}");
        let dimensions = datum["Dimensions"].as_array().unwrap();
        let of = |name: &str| {
            let found = dimensions.iter().find(|d| d["Name"] == name);
            found.map_or("-", |d| d["Value"].as_str().unwrap())
        };
        let place = [of("Operation"), of("ShardId"), of("WorkerIdentifier")].join("/");
        let set = &datum["StatisticValues"];
        let figure = |name: &str| set[name].as_f64().unwrap();
        let figures = ["SampleCount", "Sum", "Minimum", "Maximum"].map(figure);
        (format!("{place} {}", datum["MetricName"].as_str().unwrap()), figures)
    };
    data.iter().map(read).collect()
}

/// Publishes the emitted events, and returns the published metrics.
async fn publish(
    change: impl FnOnce(CloudWatch) -> CloudWatch,
) -> (BTreeMap<String, [f64; 4]>, PublishStats) {
    let local = Local::start().await.unwrap();
    let metrics = change(CloudWatch::new(&local.sdk_config(), "mailer"));
    tell(&metrics.events());
    let published = metrics.run(std::future::ready(())).await;
    (read(&local), published)
}

#[tokio::test]
async fn metrics_arrive_under_the_names_and_dimensions_of_kcl() {
    let (got, published) = publish(|metrics| metrics).await;
    let shard =
        |n: u8, name: &str| got.get(&format!("ProcessTask/shardId-00000000000{n}/- {name}"));
    assert_eq!(shard(0, "RecordsProcessed"), Some(&[2.0, 12.0, 5.0, 7.0]), "{got:?}");
    assert_eq!(shard(0, "DataBytesProcessed"), Some(&[2.0, 1_200.0, 500.0, 700.0]));
    assert_eq!(shard(0, "MillisBehindLatest"), Some(&[2.0, 4_000.0, 1_000.0, 3_000.0]));
    assert_eq!(shard(0, "RecordProcessor.processRecords.Time"), Some(&[2.0, 40.0, 20.0, 20.0]));
    assert_eq!(shard(1, "ExpiredIterator"), Some(&[1.0, 1.0, 1.0, 1.0]));
    assert_eq!(shard(1, "UpdateLease.Success"), Some(&[1.0, 1.0, 1.0, 1.0]));
    let time = "KinesisDataFetcher.getRecords.Time";
    assert_eq!(shard(0, time), Some(&[2.0, 40.0, 10.0, 30.0]));
    assert_eq!(got.get("TakeLeases/-/- NumWorkers"), Some(&[1.0, 4.0, 4.0, 4.0]));
    assert_eq!(got.get("TakeLeases/-/- TotalLeases"), Some(&[1.0, 9.0, 9.0, 9.0]));
    let lag = got.get("ApplicationTracker/-/- MillisBehindLatest");
    assert_eq!(lag, Some(&[3.0, 4_000.0, 0.0, 3_000.0]));
    assert_eq!(got.get("TakeLeases/-/- TakenLeases"), Some(&[3.0, 3.0, 1.0, 1.0]));
    assert_eq!(got.get("RenewAllLeases/-/- CurrentLeases"), Some(&[1.0, 2.0, 2.0, 2.0]));
    assert_eq!(got.get("RenewAllLeases/-/- LostLeases"), Some(&[1.0, 1.0, 1.0, 1.0]));
    assert_eq!((published.calls, published.failures, published.dropped), (1, 0, 0));
}

#[tokio::test]
async fn levels_and_dimensions_are_as_wide_as_was_asked() {
    let (all, _) = publish(CloudWatch::with_worker_dimension).await;
    assert!(all.contains_key("TakeLeases/-/mailer-1 TakenLeases"), "{all:?}");
    let (summary, _) = publish(|metrics| metrics.with_level(MetricsLevel::Summary)).await;
    assert!(summary.keys().any(|name| name.ends_with(" RecordsProcessed")), "{summary:?}");
    assert!(!summary.keys().any(|name| name.ends_with(" UpdateLease.Success")), "{summary:?}");
    let (none, published) = publish(|metrics| metrics.with_level(MetricsLevel::None)).await;
    assert!(none.is_empty() && published.calls == 0, "{none:?}");
}

#[tokio::test]
async fn many_series_go_in_batches_and_no_more_wait_than_there_is_room_for() {
    let local = Local::start().await.unwrap();
    let metrics = CloudWatch::new(&local.sdk_config(), "mailer").with_queue(450);
    let events = metrics.events();
    for n in 0..500 {
        let shard = Arc::new(LeaseKey::new("orders", format!("shardId-{n:012}")));
        events.emit(ShardEvent::IteratorRenewed { shard });
    }
    let published = metrics.run(std::future::ready(())).await;
    // The fifty that exceeded the limit, and the count of leases.
    assert_eq!((published.calls, published.series, published.dropped), (3, 450, 51));
    assert_eq!(local.metric_data().len(), 450, "large bodies are packed, and read all the same");
}

#[tokio::test]
async fn a_service_that_does_not_answer_costs_nothing_but_a_count() {
    let local = Local::start().await.unwrap();
    let config = local.sdk_config();
    local.stop().await;
    let metrics = CloudWatch::new(&config, "mailer");
    tell(&metrics.events());
    let published = metrics.run(std::future::ready(())).await;
    assert_eq!((published.calls, published.failures), (0, 1));
}
