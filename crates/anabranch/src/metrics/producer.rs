//! Metrics of producers, with the KPL's meanings. `docs/metrics.md` has its names beside ours.

use crate::event::ProducerEvent;
use anabranch_model::produce::outcome::Why;
use metrics::{counter, gauge, histogram};

pub(super) fn record(event: &ProducerEvent) {
    match event {
        ProducerEvent::Received { stream, records, pending } => {
            let stream = stream.to_string();
            counter!("anabranch_producer_records_received", "stream" => stream.clone())
                .increment(*records as u64);
            set_pending(stream, *pending);
        }
        ProducerEvent::Sent { stream, containers, records, .. } => {
            let stream = stream.to_string();
            histogram!("anabranch_producer_containers_per_request", "stream" => stream.clone())
                .record(float(*containers as u64));
            histogram!("anabranch_producer_records_per_request", "stream" => stream)
                .record(float(*records as u64));
        }
        ProducerEvent::Answered { stream, took_ms, .. } => {
            let stream = stream.to_string();
            histogram!("anabranch_producer_request_ms", "stream" => stream).record(float(*took_ms));
        }
        ProducerEvent::Placed { .. } => count_placed(event),
        ProducerEvent::Rejected { stream, records, why } => {
            if let Why::Refused { fault, .. } = why {
                count_error(stream.as_str(), None, &format!("{fault:?}"));
            }
            count_failed(stream.as_str(), reason(why), *records);
        }
        ProducerEvent::Unknown { stream, records } => {
            count_failed(stream.as_str(), "unknown", *records);
        }
        ProducerEvent::Retried { stream, shard, fault, .. } => {
            let shard = shard.as_ref().map(ToString::to_string);
            count_error(stream.as_str(), shard, &format!("{fault:?}"));
        }
        ProducerEvent::Stray { stream, shard, .. } => {
            let labels = [("stream", stream.to_string()), ("shard", shard.to_string())];
            counter!("anabranch_producer_strays", &labels).increment(1);
        }
        _ => {}
    }
}

fn count_placed(event: &ProducerEvent) {
    let ProducerEvent::Placed {
        stream, shard, records, bytes, retries, buffered_ms, pending, ..
    } = event
    else {
        return;
    };
    let labels = [("stream", stream.to_string()), ("shard", shard.to_string())];
    counter!("anabranch_producer_records_put", &labels).increment(*records as u64);
    counter!("anabranch_producer_bytes_put", &labels).increment(*bytes as u64);
    counter!("anabranch_producer_containers_put", &labels).increment(1);
    histogram!("anabranch_producer_records_per_container", &labels).record(float(*records as u64));
    histogram!("anabranch_producer_retries_per_record", &labels).record(float(*retries as u64));
    histogram!("anabranch_producer_buffering_ms", &labels).record(float(*buffered_ms));
    set_pending(stream.to_string(), *pending);
}

fn set_pending(stream: String, pending: u64) {
    gauge!("anabranch_producer_records_pending", "stream" => stream).set(float(pending));
}

fn count_failed(stream: &str, reason: &'static str, records: usize) {
    let labels = [("stream", stream.to_owned()), ("reason", reason.to_owned())];
    counter!("anabranch_producer_records_failed", &labels).increment(records as u64);
}

fn count_error(stream: &str, shard: Option<String>, code: &str) {
    let labels = [
        ("stream", stream.to_owned()),
        ("shard", shard.unwrap_or_else(|| "unknown".to_owned())),
        ("code", code.to_owned()),
    ];
    counter!("anabranch_producer_errors", &labels).increment(1);
}

fn reason(why: &Why) -> &'static str {
    match why {
        Why::Expired => "expired",
        Why::Refused { .. } => "refused",
        Why::KeyStopped => "key_stopped",
        Why::ProducerStopped => "producer_stopped",
        Why::Closed => "closed",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn float(value: u64) -> f64 {
    value as f64
}
