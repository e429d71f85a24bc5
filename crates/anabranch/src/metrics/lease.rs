//! Metrics of leases and of the worker that holds them.

use crate::event::LeaseEvent;
use metrics::{counter, gauge};

pub(super) fn record(event: &LeaseEvent) {
    match event {
        LeaseEvent::Joined { .. } => counter!("anabranch_worker_joins_total").increment(1),
        LeaseEvent::Evicted { .. } => counter!("anabranch_worker_evictions_total").increment(1),
        LeaseEvent::WorkerFenced { .. } => counter!("anabranch_workers_fenced_total").increment(1),
        LeaseEvent::FleetChanged { workers, leases } => {
            gauge!("anabranch_fleet_workers").set(float(*workers));
            gauge!("anabranch_fleet_leases").set(float(*leases));
        }
        LeaseEvent::LeaseTaken { lease, .. } => {
            counter!("anabranch_leases_taken_total", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::LeaseHandedOver { lease, .. } => {
            counter!("anabranch_leases_handed_over_total", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::LeaseReleased { lease } => {
            counter!("anabranch_leases_released_total", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::LeaseLost { lease } => {
            counter!("anabranch_leases_lost_total", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::ShardEnded { lease, .. } => {
            counter!("anabranch_shards_ended_total", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::ShardMissing { lease, .. } => {
            counter!("anabranch_shards_missing_total", "stream" => lease.stream.to_string())
                .increment(1);
        }
        LeaseEvent::HashRangeHole { stream, .. } => {
            counter!("anabranch_uncovered_hash_ranges_total", "stream" => stream.to_string())
                .increment(1);
        }
        LeaseEvent::StreamRecreated { stream, .. } => {
            counter!("anabranch_streams_recreated_total", "stream" => stream.to_string())
                .increment(1);
        }
        LeaseEvent::StreamDeleted { stream } => {
            counter!("anabranch_streams_deleted_total", "stream" => stream.to_string())
                .increment(1);
        }
        LeaseEvent::StoreCallFailed { what, .. } => {
            counter!("anabranch_lease_store_failures_total", "operation" => *what).increment(1);
        }
        LeaseEvent::StreamCallFailed { stream, .. } => {
            counter!("anabranch_stream_call_failures_total", "stream" => stream.to_string())
                .increment(1);
        }
        LeaseEvent::RowUnreadable { .. } => {
            counter!("anabranch_unreadable_lease_rows_total").increment(1);
        }
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
