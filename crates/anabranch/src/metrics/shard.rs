//! Metrics of the shards being read.

use crate::event::{ShardEvent, ShardStopReason};
use anabranch_model::lease::LeaseKey;
use anabranch_model::stuck_detector::WatchdogAction;
use metrics::{Label, counter, gauge, histogram};

pub(super) fn record(event: &ShardEvent) {
    match event {
        ShardEvent::Started { shard, .. } => {
            gauge!("anabranch_shards", "stream" => shard.stream.to_string()).increment(1.0);
        }
        ShardEvent::Fetched { shard, records, behind_latest: behind_ms, took: took_ms } => {
            counter!("anabranch_fetched_records", labels(shard)).increment(*records as u64);
            if let Some(took_ms) = took_ms {
                histogram!("anabranch_fetch_ms", labels(shard)).record(float(*took_ms));
            }
            gauge!("anabranch_behind_latest_ms", labels(shard)).set(float(*behind_ms));
        }
        ShardEvent::FetchFailed { shard, .. } => {
            counter!("anabranch_fetch_failures", labels(shard)).increment(1);
        }
        ShardEvent::IteratorRenewed { shard } => {
            counter!("anabranch_expired_iterators", labels(shard)).increment(1);
        }
        ShardEvent::RetentionGap { shard, .. } => {
            counter!("anabranch_retention_gaps", labels(shard)).increment(1);
        }
        ShardEvent::AggregateMisrouted { shard, records, .. } => {
            counter!("anabranch_dropped_aggregates", labels(shard)).increment(1);
            counter!("anabranch_dropped_aggregate_records", labels(shard))
                .increment(*records as u64);
        }
        ShardEvent::DuplicateDropped { shard, records, .. } => {
            counter!("anabranch_dropped_repeats", labels(shard)).increment(*records as u64);
        }
        ShardEvent::AggregateUnreadable { shard, records, .. } => {
            counter!("anabranch_unreadable_records", labels(shard)).increment(*records as u64);
        }
        ShardEvent::HandlerFailed { shard, .. } => {
            counter!("anabranch_handler_failures", labels(shard)).increment(1);
        }
        ShardEvent::CallbackFailed { shard, call, .. } => {
            let mut labels = labels(shard);
            labels.push(Label::from_static_parts("call", call));
            counter!("anabranch_call_failures", labels).increment(1);
        }
        ShardEvent::DeadLettered { shard, .. } => {
            counter!("anabranch_parked_records", labels(shard)).increment(1);
        }
        ShardEvent::DeadLetterFailed { shard, .. } => {
            counter!("anabranch_park_failures", labels(shard)).increment(1);
        }
        ShardEvent::Checkpointed { shard, .. } => {
            counter!("anabranch_checkpoints", labels(shard)).increment(1);
        }
        ShardEvent::CheckpointFailed { shard, .. } => {
            counter!("anabranch_checkpoint_failures", labels(shard)).increment(1);
        }
        ShardEvent::Stuck { shard, phase, for_ms, action: remedy } => {
            let mut labels = labels(shard);
            labels.push(Label::from_static_parts("phase", phase.name()));
            gauge!("anabranch_stuck_ms", labels.clone()).set(float(*for_ms));
            labels.push(Label::from_static_parts("remedy", name_of_remedy(*remedy)));
            counter!("anabranch_stuck", labels).increment(1);
        }
        ShardEvent::Metrics { shard, records, bytes, calls: runs, busy_ms, behind_ms, age_ms } => {
            counter!("anabranch_handled_records", labels(shard)).increment(*records);
            counter!("anabranch_handled_bytes", labels(shard)).increment(*bytes);
            if let Some(mean_ms) = busy_ms.checked_div(*runs) {
                histogram!("anabranch_handler_run_ms", labels(shard)).record(float(mean_ms));
            }
            if let Some(behind_ms) = behind_ms {
                gauge!("anabranch_behind_latest_ms", labels(shard)).set(float(*behind_ms));
            }
            if let Some(age_ms) = age_ms {
                gauge!("anabranch_record_age_ms", labels(shard)).set(float(*age_ms));
            }
        }
        ShardEvent::Stopped { shard, why } => {
            gauge!("anabranch_shards", "stream" => shard.stream.to_string()).decrement(1.0);
            // The next reader of the shard reports the current lag, so this worker's last value
            // must not remain. If possibly no worker can read the shard, the lag remains, because
            // an alarm on it is meant for that case.
            if !matches!(why, ShardStopReason::Failed | ShardStopReason::Stuck) {
                gauge!("anabranch_behind_latest_ms", labels(shard)).set(0.0);
                gauge!("anabranch_record_age_ms", labels(shard)).set(0.0);
            }
            let stream = shard.stream.to_string();
            counter!("anabranch_shards_stopped", "stream" => stream, "why" => name_of_stop(*why))
                .increment(1);
        }
    }
}

fn labels(shard: &LeaseKey) -> Vec<Label> {
    let (stream, shard) = (shard.stream.to_string(), shard.shard.to_string());
    vec![Label::new("stream", stream), Label::new("shard", shard)]
}

fn name_of_remedy(remedy: WatchdogAction) -> &'static str {
    match remedy {
        WatchdogAction::Report => "report",
        WatchdogAction::Restart => "restart",
        WatchdogAction::Release => "release",
    }
}

fn name_of_stop(why: ShardStopReason) -> &'static str {
    match why {
        ShardStopReason::Ended => "ended",
        ShardStopReason::Missing => "gone",
        ShardStopReason::Drained => "drained",
        ShardStopReason::Lost => "lost",
        ShardStopReason::Failed => "failed",
        ShardStopReason::Stuck => "stuck",
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a lag of 300,000 years may be off by a millisecond"
)]
fn float(ms: u64) -> f64 {
    ms as f64
}
