//! Metrics of producers, with the KPL's meanings. `docs/metrics.md` maps the KPL's names to ours.

use crate::event::ProducerEvent;
use crate::producer::ProducerId;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::produce::outcome::RejectReason;
use anabranch_model::retry::Fault;
use metrics::{counter, gauge, histogram};

/// Labels of a metric as pairs of name and value.
type Labels<const N: usize> = [(&'static str, String); N];

pub(super) fn record(event: &ProducerEvent) {
    match event {
        ProducerEvent::Received { stream, producer, records, pending } => {
            counter!("anabranch_producer_user_records_received_total", &of(stream, producer))
                .increment(*records as u64);
            set_pending(stream, producer, *pending);
        }
        ProducerEvent::RequestSent { stream, producer, kinesis_records, records, .. } => {
            let labels = of(stream, producer);
            histogram!("anabranch_producer_kinesis_records_per_request", &labels)
                .record(float(*kinesis_records as u64));
            histogram!("anabranch_producer_user_records_per_request", &labels)
                .record(float(*records as u64));
        }
        ProducerEvent::RequestCompleted { stream, producer, took, .. } => {
            histogram!("anabranch_producer_request_duration_seconds", &of(stream, producer))
                .record(took.as_secs_f64());
        }
        ProducerEvent::Placed { .. } => count_placed(event),
        ProducerEvent::Rejected { stream, producer, records, why, pending } => {
            if let RejectReason::Refused { fault, .. } = why {
                count_error(stream, producer, None, code(*fault));
            }
            count_failed(stream, producer, reason(why), *records);
            set_pending(stream, producer, *pending);
        }
        ProducerEvent::Unknown { stream, producer, records, pending } => {
            count_failed(stream, producer, "unknown", *records);
            set_pending(stream, producer, *pending);
        }
        ProducerEvent::Retried { stream, producer, shard, fault, .. } => {
            count_error(stream, producer, shard.as_ref(), code(*fault));
        }
        ProducerEvent::Paused { stream, producer, paused, .. }
        | ProducerEvent::Resumed { stream, producer, paused, .. } => {
            gauge!("anabranch_producer_paused_shards", &of(stream, producer))
                .set(float(*paused as u64));
        }
        ProducerEvent::Misrouted { stream, producer, shard, .. } => {
            counter!(
                "anabranch_producer_misrouted_kinesis_records_total",
                &with_shard(stream, producer, shard)
            )
            .increment(1);
        }
        _ => {}
    }
}

fn of(stream: &StreamName, producer: &ProducerId) -> Labels<2> {
    [("stream", stream.to_string()), ("producer", producer.to_string())]
}

fn with_shard(stream: &StreamName, producer: &ProducerId, shard: &ShardId) -> Labels<3> {
    let [stream, producer] = of(stream, producer);
    [stream, ("shard", shard.to_string()), producer]
}

fn count_placed(event: &ProducerEvent) {
    let ProducerEvent::Placed {
        stream,
        producer,
        shard,
        records,
        bytes,
        retries,
        buffered_for,
        pending,
        ..
    } = event
    else {
        return;
    };
    let labels = with_shard(stream, producer, shard);
    counter!("anabranch_producer_user_records_put_total", &labels).increment(*records as u64);
    counter!("anabranch_producer_user_records_put_bytes_total", &labels).increment(*bytes as u64);
    counter!("anabranch_producer_kinesis_records_put_total", &labels).increment(1);
    histogram!("anabranch_producer_user_records_per_kinesis_record", &labels)
        .record(float(*records as u64));
    histogram!("anabranch_producer_retries_per_kinesis_record", &labels)
        .record(float(*retries as u64));
    histogram!("anabranch_producer_buffering_duration_seconds", &labels)
        .record(buffered_for.as_secs_f64());
    set_pending(stream, producer, *pending);
}

fn set_pending(stream: &StreamName, producer: &ProducerId, pending: u64) {
    gauge!("anabranch_producer_user_records_pending", &of(stream, producer)).set(float(pending));
}

fn count_failed(stream: &StreamName, producer: &ProducerId, reason: &str, records: usize) {
    let [stream, producer] = of(stream, producer);
    let labels = [stream, ("reason", reason.to_owned()), producer];
    counter!("anabranch_producer_user_records_failed_total", &labels).increment(records as u64);
}

fn count_error(stream: &StreamName, producer: &ProducerId, shard: Option<&ShardId>, code: &str) {
    let [stream, producer] = of(stream, producer);
    let shard = shard.map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let labels = [stream, ("shard", shard), ("code", code.to_owned()), producer];
    counter!("anabranch_producer_errors_total", &labels).increment(1);
}

fn code(fault: Fault) -> &'static str {
    match fault {
        Fault::Throttled => "throttled",
        Fault::Internal => "internal",
        Fault::ReplyLost => "reply_lost",
        Fault::NotSent => "not_sent",
        Fault::LimitReached => "limit_reached",
        Fault::Busy => "busy",
        Fault::CredentialsExpired => "credentials_expired",
        Fault::IteratorExpired => "iterator_expired",
        Fault::AccessDenied => "access_denied",
        Fault::Missing => "missing",
        Fault::Invalid => "invalid",
        Fault::TooLarge => "too_large",
        Fault::KeyUnusable => "key_unusable",
        Fault::Unknown => "unknown",
    }
}

fn reason(why: &RejectReason) -> &'static str {
    match why {
        RejectReason::Expired => "expired",
        RejectReason::Refused { .. } => "refused",
        RejectReason::KeyStopped => "key_stopped",
        RejectReason::ProducerStopped => "producer_stopped",
        RejectReason::Closed => "closed",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn float(value: u64) -> f64 {
    value as f64
}
