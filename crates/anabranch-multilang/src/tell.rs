//! What happens to leases and shards, in the log.

use anabranch::event::{Event, Events, LeaseEvent, ShardEvent};

/// Every event goes to the log: trouble as a warning, changes of hands as information, the rest
/// for debugging.
pub(crate) fn to_log() -> Events {
    Events::new(|event| match event {
        Event::Lease(LeaseEvent::KeptOff { wait_ms, leader }) => {
            let leader = leader.as_deref().unwrap_or("none");
            tracing::info!(
                wait_ms,
                leader,
                "KCL 3.x worked on the lease table last: waiting until nothing on it moves"
            );
        }
        Event::Lease(
            LeaseEvent::Expelled { .. }
            | LeaseEvent::StoodDown { .. }
            | LeaseEvent::LeadsUnread { .. }
            | LeaseEvent::Lost { .. }
            | LeaseEvent::ShardLost { .. }
            | LeaseEvent::Hole { .. }
            | LeaseEvent::StreamRecreated { .. }
            | LeaseEvent::StreamGone { .. }
            | LeaseEvent::StreamBack { .. }
            | LeaseEvent::StoreTrouble { .. }
            | LeaseEvent::StreamTrouble { .. }
            | LeaseEvent::UnreadableRow { .. },
        )
        | Event::Shard(
            ShardEvent::FetchFailed { .. }
            | ShardEvent::Trimmed { .. }
            | ShardEvent::HandlerFailed { .. }
            | ShardEvent::CallFailed { .. }
            | ShardEvent::Stuck { .. }
            | ShardEvent::AggregateDropped { .. }
            | ShardEvent::AggregateCut { .. }
            | ShardEvent::CheckpointFailed { .. },
        ) => tracing::warn!("{}", line(event)),
        Event::Lease(
            LeaseEvent::Joined { .. }
            | LeaseEvent::Left { .. }
            | LeaseEvent::Fenced { .. }
            | LeaseEvent::Taken { .. }
            | LeaseEvent::Passed { .. }
            | LeaseEvent::Released { .. }
            | LeaseEvent::Waiting { .. }
            | LeaseEvent::Ended { .. }
            | LeaseEvent::StreamAwaited { .. }
            | LeaseEvent::Synced { .. },
        )
        | Event::Shard(ShardEvent::Started { .. } | ShardEvent::Stopped { .. }) => {
            tracing::info!("{}", line(event));
        }
        _ => tracing::debug!("{}", line(event)),
    })
}

/// Every event goes to the log, and to `other` too.
pub(crate) fn to_all(other: Option<Events>) -> Events {
    let log = to_log();
    match other {
        None => log,
        Some(other) => Events::new(move |event| {
            log.emit(event.clone());
            other.emit(event.clone());
        }),
    }
}

/// The event without the name of its area.
fn line(event: &Event) -> String {
    match event {
        Event::Lease(event) => format!("{event:?}"),
        Event::Shard(event) => format!("{event:?}"),
        other => format!("{other:?}"),
    }
}
