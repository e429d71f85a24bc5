//! Logging of lease and shard events.

use anabranch::event::{Event, Events, LeaseEvent, ShardEvent};

/// Returns a listener that logs every event: problems as warnings, lease changes as information,
/// others for debugging.
pub(crate) fn log_events() -> Events {
    Events::new(|event| match event {
        Event::Lease(LeaseEvent::WaitingForKcl3 { wait, leader }) => {
            let leader = leader.as_deref().unwrap_or("none");
            tracing::info!(
                ?wait,
                leader,
                "KCL 3.x was the last to use the lease table: waiting until nothing in it changes"
            );
        }
        Event::Lease(
            LeaseEvent::Evicted { .. }
            | LeaseEvent::YieldedToKcl3 { .. }
            | LeaseEvent::LeadsUnreadStreams { .. }
            | LeaseEvent::LeaseLost { .. }
            | LeaseEvent::ShardMissing { .. }
            | LeaseEvent::HashRangeHole { .. }
            | LeaseEvent::StreamRecreated { .. }
            | LeaseEvent::StreamDeleted { .. }
            | LeaseEvent::StreamRestored { .. }
            | LeaseEvent::StoreCallFailed { .. }
            | LeaseEvent::StreamCallFailed { .. }
            | LeaseEvent::RowUnreadable { .. },
        )
        | Event::Shard(
            ShardEvent::FetchFailed { .. }
            | ShardEvent::RetentionGap { .. }
            | ShardEvent::HandlerFailed { .. }
            | ShardEvent::CallbackFailed { .. }
            | ShardEvent::Stuck { .. }
            | ShardEvent::AggregateMisrouted { .. }
            | ShardEvent::AggregateUnreadable { .. }
            | ShardEvent::CheckpointFailed { .. },
        ) => tracing::warn!("{}", line(event)),
        Event::Lease(
            LeaseEvent::Joined { .. }
            | LeaseEvent::Left { .. }
            | LeaseEvent::WorkerFenced { .. }
            | LeaseEvent::LeaseTaken { .. }
            | LeaseEvent::LeaseHandedOver { .. }
            | LeaseEvent::LeaseReleased { .. }
            | LeaseEvent::WaitingForParent { .. }
            | LeaseEvent::ShardEnded { .. }
            | LeaseEvent::StreamNotActive { .. }
            | LeaseEvent::RowsCreated { .. },
        )
        | Event::Shard(ShardEvent::Started { .. } | ShardEvent::Stopped { .. }) => {
            tracing::info!("{}", line(event));
        }
        _ => tracing::debug!("{}", line(event)),
    })
}

/// Returns a listener that logs every event and forwards it to `other`.
pub(crate) fn log_and_forward(other: Option<Events>) -> Events {
    let log = log_events();
    match other {
        None => log,
        Some(other) => Events::new(move |event| {
            log.emit(event.clone());
            other.emit(event.clone());
        }),
    }
}

/// Formats the event without the name of its area.
fn line(event: &Event) -> String {
    match event {
        Event::Lease(event) => format!("{event:?}"),
        Event::Shard(event) => format!("{event:?}"),
        other => format!("{other:?}"),
    }
}
