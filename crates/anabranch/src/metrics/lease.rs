//! Metrics of leases, and of the worker that holds them.

use crate::event::LeaseEvent;
use metrics::{counter, gauge};

pub(super) fn record(event: &LeaseEvent) {
    match event {
        LeaseEvent::Joined { .. } => counter!("anabranch_worker_joins").increment(1),
        LeaseEvent::Expelled { .. } => counter!("anabranch_worker_expulsions").increment(1),
        LeaseEvent::Fenced { .. } => counter!("anabranch_workers_fenced").increment(1),
        LeaseEvent::FleetSeen { workers, leases } => {
            gauge!("anabranch_fleet_workers").set(float(*workers));
            gauge!("anabranch_fleet_leases").set(float(*leases));
        }
        LeaseEvent::Taken { lease, .. } => {
            counter!("anabranch_leases_taken", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::Passed { lease, .. } => {
            counter!("anabranch_leases_passed", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::Released { lease } => {
            counter!("anabranch_leases_released", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::Lost { lease } => {
            counter!("anabranch_leases_lost", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::Ended { lease, .. } => {
            counter!("anabranch_shards_ended", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::ShardLost { lease, .. } => {
            counter!("anabranch_shards_lost", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::Hole { stream, .. } => {
            counter!("anabranch_holes_seen", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::StreamRecreated { stream, .. } => {
            counter!("anabranch_streams_recreated", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::StreamGone { stream } => {
            counter!("anabranch_streams_gone", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::StoreTrouble { what, .. } => {
            counter!("anabranch_store_failures", "call" => *what).increment(1);
        }
        LeaseEvent::StreamTrouble { stream, .. } => {
            counter!("anabranch_stream_failures", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::UnreadableRow { .. } => counter!("anabranch_unreadable_rows").increment(1),
        LeaseEvent::StreamBack { .. }
        | LeaseEvent::KeptOff { .. }
        | LeaseEvent::StoodDown { .. }
        | LeaseEvent::LeadsUnread { .. }
        | LeaseEvent::Retired { .. }
        | LeaseEvent::Left { .. }
        | LeaseEvent::WorkerForgotten { .. }
        | LeaseEvent::Asked { .. }
        | LeaseEvent::Withdrawn { .. }
        | LeaseEvent::Draining { .. }
        | LeaseEvent::Waiting { .. }
        | LeaseEvent::StreamAwaited { .. }
        | LeaseEvent::Synced { .. }
        | LeaseEvent::RowRemoved { .. } => {}
    }
}

#[expect(clippy::cast_precision_loss, reason = "no fleet has so many workers")]
fn float(count: usize) -> f64 {
    count as f64
}
