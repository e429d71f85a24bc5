//! Metrics of leases and of the worker that holds them.

use crate::event::LeaseEvent;
use metrics::{counter, gauge};

pub(super) fn record(event: &LeaseEvent) {
    match event {
        LeaseEvent::Joined { .. } => counter!("anabranch_worker_joins").increment(1),
        LeaseEvent::Evicted { .. } => counter!("anabranch_worker_expulsions").increment(1),
        LeaseEvent::WorkerFenced { .. } => counter!("anabranch_workers_fenced").increment(1),
        LeaseEvent::FleetChanged { workers, leases } => {
            gauge!("anabranch_fleet_workers").set(float(*workers));
            gauge!("anabranch_fleet_leases").set(float(*leases));
        }
        LeaseEvent::LeaseTaken { lease, .. } => {
            counter!("anabranch_leases_taken", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::LeaseHandedOver { lease, .. } => {
            counter!("anabranch_leases_passed", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::LeaseReleased { lease } => {
            counter!("anabranch_leases_released", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::LeaseLost { lease } => {
            counter!("anabranch_leases_lost", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::ShardEnded { lease, .. } => {
            counter!("anabranch_shards_ended", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::ShardMissing { lease, .. } => {
            counter!("anabranch_shards_lost", "stream" => lease.stream.to_string()).increment(1);
        }
        LeaseEvent::HashRangeHole { stream, .. } => {
            counter!("anabranch_holes_seen", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::StreamRecreated { stream, .. } => {
            counter!("anabranch_streams_recreated", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::StreamDeleted { stream } => {
            counter!("anabranch_streams_gone", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::StoreCallFailed { what, .. } => {
            counter!("anabranch_store_failures", "call" => *what).increment(1);
        }
        LeaseEvent::StreamCallFailed { stream, .. } => {
            counter!("anabranch_stream_failures", "stream" => stream.to_string()).increment(1);
        }
        LeaseEvent::RowUnreadable { .. } => counter!("anabranch_unreadable_rows").increment(1),
        LeaseEvent::StreamRestored { .. }
        | LeaseEvent::WaitingForKcl3 { .. }
        | LeaseEvent::YieldedToKcl3 { .. }
        | LeaseEvent::LeadsUnreadStreams { .. }
        | LeaseEvent::Leaving { .. }
        | LeaseEvent::Left { .. }
        | LeaseEvent::WorkerRowRemoved { .. }
        | LeaseEvent::HandOverRequested { .. }
        | LeaseEvent::HandOverWithdrawn { .. }
        | LeaseEvent::Draining { .. }
        | LeaseEvent::WaitingForParent { .. }
        | LeaseEvent::StreamNotActive { .. }
        | LeaseEvent::RowsCreated { .. }
        | LeaseEvent::LeaseRowRemoved { .. } => {}
    }
}

#[expect(clippy::cast_precision_loss, reason = "no fleet has so many workers")]
fn float(count: usize) -> f64 {
    count as f64
}
