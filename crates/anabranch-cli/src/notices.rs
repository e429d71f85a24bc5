//! Notices on standard error while a command runs: failures and lease changes.

use crate::line::{one_line, short};
use crate::output::print_note;
use crate::printer::STDOUT_CLOSED;
use crate::time_spec;
use anabranch::consumer::WatchdogAction;
use anabranch::event::{Event, Events, LeaseEvent, ProducerEvent, RelayEvent, ShardEvent};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of failures counted. Beyond it, counting starts over.
const KINDS: usize = 10_000;

/// Limits repeated notices of the same failure to the first and each doubling of its count.
#[derive(Default)]
struct RepeatLimiter(BTreeMap<String, u64>);

impl RepeatLimiter {
    /// Counts a failure. Returns the count if it should be printed now.
    fn count(&mut self, kind: String) -> Option<u64> {
        if self.0.len() >= KINDS && !self.0.contains_key(&kind) {
            self.0.clear();
        }
        let count = self.0.entry(kind).or_default();
        *count += 1;
        count.is_power_of_two().then_some(*count)
    }
}

/// Returns a listener that prints notices. With `all`, lease changes too.
pub(crate) fn printed(all: bool) -> Events {
    let repeats = Mutex::new(RepeatLimiter::default());
    Events::new(move |event| {
        if let Some(trouble) = describe_failure(event) {
            let mut repeats = repeats.lock().unwrap_or_else(PoisonError::into_inner);
            match repeats.count(trouble.clone()) {
                None => {}
                // The table contains the same row in each poll.
                Some(2..) if matches!(event, Event::Lease(LeaseEvent::RowUnreadable { .. })) => {}
                Some(1) => print_note!("warning: {trouble}"),
                Some(times) => print_note!("warning: {trouble} ({times} times)"),
            }
        } else if let Event::Producer(ProducerEvent::Resumed {
            stream, duration, paused: 0, ..
        }) = event
        {
            let paused_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            print_note!("{stream} accepts records again, after {}", time_spec::span(paused_ms));
        } else if all && let Some(change) = describe_change(event) {
            print_note!("{change}");
        }
    })
}

fn unreadable(row: &str, why: &str) -> String {
    format!(
        "row {row} of the lease table can't be read: {why}: repair it, or delete it once its \
         worker is dead; its leases are taken over a lease time later"
    )
}

fn waiting_for_kcl3(wait: Duration, leader: Option<&str>) -> String {
    format!(
        "a fleet of KCL 3.x was the last to use this lease table{}: work begins once the table has \
         not changed for {} s",
        leader.map(|owner| format!(" (leader {owner})")).unwrap_or_default(),
        wait.as_millis().div_ceil(1_000)
    )
}

/// Describes a failure event. Returns `None` for other events.
fn describe_failure(event: &Event) -> Option<String> {
    Some(match event {
        Event::Lease(LeaseEvent::Evicted { worker }) => {
            format!(
                "this worker ({worker}) sent no heartbeat for too long and lost its shards; it \
                 rejoins"
            )
        }
        Event::Lease(LeaseEvent::WaitingForKcl3 { wait, leader }) => {
            waiting_for_kcl3(*wait, leader.as_deref())
        }
        Event::Lease(LeaseEvent::YieldedToKcl3 { hindrance }) => {
            format!("this worker releases its leases and exits: {hindrance}")
        }
        Event::Lease(LeaseEvent::LeadsUnreadStreams { streams }) => format!(
            "the Java workers of this table leave the rows of all streams to this worker, but it \
             does not read {}, so their reshards are not followed: read all streams of the table \
             here, or give this worker a table of its own",
            streams.join(", ")
        ),
        Event::Lease(LeaseEvent::LeaseLost { lease }) => {
            format!("the lease of {} was lost", short(&lease.shard))
        }
        Event::Lease(LeaseEvent::ShardMissing { lease, .. }) => format!(
            "{} is past the retention period: its unread records are lost",
            short(&lease.shard)
        ),
        Event::Lease(LeaseEvent::StreamRecreated { stream, .. }) => format!(
            "stream {stream} was deleted and created again, and is no longer read: start with a \
             new application name"
        ),
        Event::Lease(LeaseEvent::StreamDeleted { stream }) => {
            format!("stream {stream} was deleted, and is no longer read")
        }
        Event::Lease(LeaseEvent::StreamRestored { stream }) => {
            format!("stream {stream} exists after all, and is read again")
        }
        Event::Lease(LeaseEvent::StreamNotActive { stream, status }) => format!(
            "stream {stream} is {status}, and this application has not read it yet: reading begins \
             when that ends"
        ),
        Event::Lease(LeaseEvent::StoreCallFailed { what, error }) => format!("{what}: {error}"),
        Event::Lease(LeaseEvent::StreamCallFailed { error, .. }) => error.clone(),
        Event::Lease(LeaseEvent::RowUnreadable { row, why }) => unreadable(row, why),
        Event::Lease(LeaseEvent::HashRangeHole { stream, range: keys, audits: looks })
            if *looks > 1 =>
        {
            format!("no lease covers the keys {keys:?} of {stream}")
        }
        Event::Shard(event) => return describe_shard_failure(event),
        // Reported as a pause.
        Event::Producer(ProducerEvent::Retried { fault, .. }) if fault.refuses_caller() => {
            return None;
        }
        Event::Producer(ProducerEvent::Paused { stream, producer, detail, .. }) => format!(
            "{stream} refuses producer {producer}, so its records wait and are retried: {detail}"
        ),
        Event::Producer(ProducerEvent::Retried { producer, detail, .. }) => {
            format!("the stream did not accept records of producer {producer}; retrying: {detail}")
        }
        Event::Relay(event) => return describe_relay_failure(event),
        _ => return None,
    })
}

/// Describes a failure event of a shard.
fn describe_shard_failure(event: &ShardEvent) -> Option<String> {
    Some(match event {
        // A closed pipe is not a failure. It ends the command.
        ShardEvent::HandlerFailed { error, .. } if error == STDOUT_CLOSED => {
            return None;
        }
        ShardEvent::RetentionGap { shard, after, to } => {
            let to = to.map_or("now".to_owned(), |to| to.to_string());
            format!(
                "{}: the records between {after} and {to} have expired, and unread ones are lost: \
                 read them sooner, or raise the stream's retention",
                short(&shard.shard)
            )
        }
        ShardEvent::AggregateMisrouted { shard, records, .. } => format!(
            "{}: an aggregate of {records} records contains a record of another shard, so all of \
             them are dropped, as KCL does",
            short(&shard.shard)
        ),
        ShardEvent::FetchFailed { shard, error, .. }
        | ShardEvent::HandlerFailed { shard, error, .. } => {
            format!("{}: {}", short(&shard.shard), one_line(error))
        }
        ShardEvent::AggregateUnreadable { shard, at, records } => format!(
            "{}: the aggregate at {at} is damaged, and {records} of its records are lost",
            short(&shard.shard)
        ),
        ShardEvent::DeadLettered { shard, at, error } => {
            format!(
                "{}: record {at} became a dead letter: {}",
                short(&shard.shard),
                one_line(error)
            )
        }
        ShardEvent::DeadLetterFailed { shard, error, .. } => {
            format!("{}: a dead letter could not be stored: {error}", short(&shard.shard))
        }
        ShardEvent::CheckpointFailed { shard, error } => {
            format!("{}: the checkpoint was not written: {error}", short(&shard.shard))
        }
        // Durations differ each time and would make each notice unique.
        ShardEvent::Stuck { shard, phase, action, .. } => {
            let reaction = match action {
                WatchdogAction::Report => "waiting",
                WatchdogAction::Restart => "restarting",
                WatchdogAction::Release => "releasing its lease",
            };
            format!("{} is stuck in {}; {reaction}", short(&shard.shard), phase.name())
        }
        _ => return None,
    })
}

/// Describes a failure event of a relay.
fn describe_relay_failure(event: &RelayEvent) -> Option<String> {
    Some(match event {
        RelayEvent::Interrupted { table, error, .. } => {
            format!("the relay of {table} was interrupted and starts again: {error}")
        }
        RelayEvent::WaitingForTransaction { table, row, .. } => format!(
            "row {row} of {table} and those behind it wait for a transaction that is still \
             running: see 'anabranch relay status'"
        ),
        RelayEvent::RemovalRefused { table, row, error } => format!(
            "row {row} of {table} is in the stream but can't be removed; retrying, and reading \
             stops at --max-in-flight such rows: {error}"
        ),
        RelayEvent::RowRestored { table, row } => format!(
            "row {row} of {table}, and perhaps others, appeared behind rows that were already \
             sent, as after a restore; they are sent now"
        ),
        RelayEvent::KeyBlocked { row, key, why, .. } => format!(
            "row {row} can't be sent, so its key {key:?} is blocked: {why}; 'anabranch relay skip \
             {row}' discards it, 'anabranch relay retry KEY' sends it again"
        ),
        _ => return None,
    })
}

/// Describes a change of leases or of the active relay.
fn describe_change(event: &Event) -> Option<String> {
    Some(match event {
        Event::Lease(LeaseEvent::Joined { worker }) => format!("joined as {worker}"),
        Event::Lease(LeaseEvent::Left { .. }) => "left".to_owned(),
        Event::Lease(LeaseEvent::LeaseTaken { lease, .. }) => {
            format!("took {}", short(&lease.shard))
        }
        Event::Lease(LeaseEvent::LeaseHandedOver { lease, to }) => {
            format!("handed {} over to {to}", short(&lease.shard))
        }
        Event::Lease(LeaseEvent::LeaseReleased { lease }) => {
            format!("released {}", short(&lease.shard))
        }
        Event::Lease(LeaseEvent::WorkerFenced { worker }) => {
            format!("fenced {worker}, which sent no heartbeat")
        }
        Event::Lease(LeaseEvent::ShardEnded { lease, children }) => {
            let children: Vec<_> = children.iter().map(short).collect();
            format!("finished {}, followed by {}", short(&lease.shard), children.join(" and "))
        }
        Event::Relay(RelayEvent::Leading { table }) => format!("relaying {table}"),
        Event::Relay(RelayEvent::StandingBy { table }) => {
            format!("another relay leads {table}; this one stands by")
        }
        Event::Relay(RelayEvent::KeyResumed { key, .. }) => format!("key {key:?} resumes"),
        _ => return None,
    })
}
