//! Metrics of the shards being read.

use crate::event::{ShardEvent, ShardStopReason};
use anabranch_model::lease::LeaseKey;
use anabranch_model::stuck_detector::WatchdogAction;
use metrics::{Label, counter, gauge, histogram};
use std::time::Duration;

pub(super) fn record(event: &ShardEvent) {
    match event {
        ShardEvent::Started { shard, .. } => {
            gauge!("anabranch_consumer_shards", "stream" => shard.stream.to_string())
                .increment(1.0);
        }
        ShardEvent::Fetched { shard, records, behind_latest, took } => {
            counter!("anabranch_consumer_kinesis_records_fetched_total", labels(shard))
                .increment(*records as u64);
            if let Some(took) = took {
                histogram!("anabranch_consumer_fetch_duration_seconds", labels(shard))
                    .record(took.as_secs_f64());
            }
            set_lag(shard, *behind_latest);
        }
        ShardEvent::FetchFailed { shard, .. } => {
            counter!("anabranch_consumer_fetch_failures_total", labels(shard)).increment(1);
        }
        ShardEvent::IteratorRenewed { shard } => {
            counter!("anabranch_consumer_expired_iterators_total", labels(shard)).increment(1);
        }
        ShardEvent::RetentionGap { shard, .. } => {
            counter!("anabranch_consumer_retention_gaps_total", labels(shard)).increment(1);
        }
        ShardEvent::AggregateMisrouted { shard, records, .. } => {
            counter!("anabranch_consumer_misrouted_aggregates_total", labels(shard)).increment(1);
            counter!("anabranch_consumer_misrouted_user_records_total", labels(shard))
                .increment(*records as u64);
        }
        ShardEvent::DuplicateDropped { shard, records, .. } => {
            counter!("anabranch_consumer_duplicate_user_records_total", labels(shard))
                .increment(*records as u64);
        }
        ShardEvent::AggregateUnreadable { shard, records, .. } => {
            counter!("anabranch_consumer_unreadable_user_records_total", labels(shard))
                .increment(*records as u64);
        }
        ShardEvent::HandlerFailed { shard, .. } => {
            counter!("anabranch_consumer_handler_failures_total", labels(shard)).increment(1);
        }
        ShardEvent::CallbackFailed { shard, call, .. } => {
            let mut labels = labels(shard);
            labels.push(Label::from_static_parts("callback", call));
            counter!("anabranch_consumer_callback_failures_total", labels).increment(1);
        }
        ShardEvent::DeadLettered { shard, .. } => {
            counter!("anabranch_consumer_dead_letters_total", labels(shard)).increment(1);
        }
        ShardEvent::DeadLetterFailed { shard, .. } => {
            counter!("anabranch_consumer_dead_letter_failures_total", labels(shard)).increment(1);
        }
        ShardEvent::Checkpointed { shard, .. } => {
            counter!("anabranch_consumer_checkpoints_total", labels(shard)).increment(1);
        }
        ShardEvent::CheckpointFailed { shard, .. } => {
            counter!("anabranch_consumer_checkpoint_failures_total", labels(shard)).increment(1);
        }
        ShardEvent::Stuck { shard, phase, stuck_for, action } => {
            let mut labels = labels(shard);
            labels.push(Label::from_static_parts("phase", phase.name()));
            gauge!("anabranch_consumer_stuck_seconds", labels.clone()).set(stuck_for.as_secs_f64());
            labels.push(Label::from_static_parts("action", name_of_action(*action)));
            counter!("anabranch_consumer_stuck_total", labels).increment(1);
        }
        ShardEvent::Metrics { shard, records, bytes, calls, busy, behind_latest, age } => {
            counter!("anabranch_consumer_user_records_processed_total", labels(shard))
                .increment(*records);
            counter!("anabranch_consumer_user_records_processed_bytes_total", labels(shard))
                .increment(*bytes);
            if *calls > 0 {
                histogram!("anabranch_consumer_handler_duration_seconds", labels(shard))
                    .record(busy.as_secs_f64() / float(*calls));
            }
            if let Some(behind_latest) = behind_latest {
                set_lag(shard, *behind_latest);
            }
            if let Some(age) = age {
                set_record_age(shard, *age);
            }
        }
        ShardEvent::Stopped { shard, why } => {
            gauge!("anabranch_consumer_shards", "stream" => shard.stream.to_string())
                .decrement(1.0);
            // The next reader of the shard reports the current lag, so this worker's last value
            // must not remain. If possibly no worker can read the shard, the lag remains, because
            // an alarm on it is meant for that case.
            if !matches!(why, ShardStopReason::Failed | ShardStopReason::Stuck) {
                set_lag(shard, Duration::ZERO);
                set_record_age(shard, Duration::ZERO);
            }
            let labels = vec![
                Label::new("stream", shard.stream.to_string()),
                Label::from_static_parts("reason", name_of_stop(*why)),
            ];
            counter!("anabranch_consumer_shards_stopped_total", labels).increment(1);
        }
    }
}

fn set_lag(shard: &LeaseKey, behind_latest: Duration) {
    gauge!("anabranch_consumer_behind_latest_seconds", labels(shard))
        .set(behind_latest.as_secs_f64());
}

fn set_record_age(shard: &LeaseKey, age: Duration) {
    gauge!("anabranch_consumer_record_age_seconds", labels(shard)).set(age.as_secs_f64());
}

fn labels(shard: &LeaseKey) -> Vec<Label> {
    let (stream, shard) = (shard.stream.to_string(), shard.shard.to_string());
    vec![Label::new("stream", stream), Label::new("shard", shard)]
}

fn name_of_action(action: WatchdogAction) -> &'static str {
    match action {
        WatchdogAction::Report => "report",
        WatchdogAction::Restart => "restart",
        WatchdogAction::Release => "release",
    }
}

fn name_of_stop(why: ShardStopReason) -> &'static str {
    match why {
        ShardStopReason::Ended => "ended",
        ShardStopReason::Missing => "missing",
        ShardStopReason::Drained => "drained",
        ShardStopReason::Lost => "lost",
        ShardStopReason::Failed => "failed",
        ShardStopReason::Stuck => "stuck",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn float(count: u64) -> f64 {
    count as f64
}
