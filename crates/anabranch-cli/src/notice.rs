//! What an operator is told on standard error while a command runs: trouble, and changes of hands.

use crate::line::{one_line, short};
use crate::moment;
use crate::output::note;
use crate::printer::NOBODY_READS;
use anabranch::event::{Event, Events, LeaseEvent, ProducerEvent, RelayEvent, ShardEvent};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Kinds of trouble that are counted at the most. Beyond, all are told anew.
const KINDS: usize = 10_000;

/// How often the same trouble is told again: at the first time, and then at each doubling.
#[derive(Default)]
struct Repeats(BTreeMap<String, u64>);

impl Repeats {
    /// Whether to tell it now, and how often it happened.
    fn count(&mut self, kind: String) -> Option<u64> {
        if self.0.len() >= KINDS && !self.0.contains_key(&kind) {
            self.0.clear();
        }
        let count = self.0.entry(kind).or_default();
        *count += 1;
        count.is_power_of_two().then_some(*count)
    }
}

/// Prints notices of what happens. `all` shows changes of hands too.
pub(crate) fn printed(all: bool) -> Events {
    let repeats = Mutex::new(Repeats::default());
    Events::new(move |event| {
        if let Some(trouble) = trouble(event) {
            let mut repeats = repeats.lock().unwrap_or_else(PoisonError::into_inner);
            match repeats.count(trouble.clone()) {
                None => {}
                // It is the same row each time that the table is read.
                Some(2..) if matches!(event, Event::Lease(LeaseEvent::UnreadableRow { .. })) => {}
                Some(1) => note!("warning: {trouble}"),
                Some(times) => note!("warning: {trouble} ({times} times)"),
            }
        } else if let Event::Producer(ProducerEvent::Resumed {
            stream, for_ms, paused: 0, ..
        }) = event
        {
            note!("{stream} takes records again, after {}", moment::span(*for_ms));
        } else if all && let Some(change) = change(event) {
            note!("{change}");
        }
    })
}

fn unreadable(row: &str, why: &str) -> String {
    format!(
        "row {row} of the lease table can't be read: {why}: repair it, or delete it once its worker \
         is dead: what it held is taken over a lease time later"
    )
}

/// What went wrong, if something did.
fn trouble(event: &Event) -> Option<String> {
    Some(match event {
        // A closed pipe is the reader's right, and ends the command.
        Event::Shard(ShardEvent::HandlerFailed { error, .. }) if error == NOBODY_READS => {
            return None;
        }
        Event::Lease(LeaseEvent::Expelled { worker }) => {
            format!(
                "this worker ({worker}) was silent for too long and lost its shards; it joins again"
            )
        }
        Event::Lease(LeaseEvent::KeptOff { wait_ms, leader }) => format!(
            "a fleet of KCL 3.x worked on this lease table last{}: work begins once nothing on it \
             has moved for {} s",
            leader.as_ref().map(|owner| format!(" (leader {owner})")).unwrap_or_default(),
            wait_ms.div_ceil(1_000)
        ),
        Event::Lease(LeaseEvent::StoodDown { hindrance }) => {
            format!("this worker gives back what it has and ends: {hindrance}")
        }
        Event::Lease(LeaseEvent::LeadsUnread { streams }) => format!(
            "the Java workers of this table leave the rows of all streams to this worker, and it \
             does not read {}: nobody follows their reshards; read all streams of the table here, \
             or give this worker a table of its own",
            streams.join(", ")
        ),
        Event::Lease(LeaseEvent::Lost { lease }) => format!("{} was lost", short(&lease.shard)),
        Event::Lease(LeaseEvent::ShardLost { lease, .. }) => format!(
            "{} is past the retention period: what was not read of it is lost",
            short(&lease.shard)
        ),
        Event::Lease(LeaseEvent::StreamRecreated { stream, .. }) => format!(
            "stream {stream} was deleted and created again; it is read no longer: start with a new \
             application name"
        ),
        Event::Lease(LeaseEvent::StreamGone { stream }) => {
            format!("stream {stream} was deleted; it is read no longer")
        }
        Event::Lease(LeaseEvent::StreamBack { stream }) => {
            format!("stream {stream} exists after all; it is read again")
        }
        Event::Lease(LeaseEvent::StreamAwaited { stream, status }) => format!(
            "stream {stream} is {status}, and this application has not read it yet: work begins \
             when that is over"
        ),
        Event::Lease(LeaseEvent::StoreTrouble { what, error }) => format!("{what}: {error}"),
        Event::Lease(LeaseEvent::StreamTrouble { error, .. }) => error.clone(),
        Event::Lease(LeaseEvent::UnreadableRow { row, why }) => unreadable(row, why),
        Event::Lease(LeaseEvent::Hole { stream, keys, looks }) if *looks > 1 => {
            format!("no lease covers the keys {keys:?} of {stream}")
        }
        Event::Shard(ShardEvent::Trimmed { shard, after, to }) => {
            let to = to.map_or("now".to_owned(), |to| to.to_string());
            format!(
                "{}: what came between {after} and {to} is past retention, and lost if it was not \
                 read: have it read sooner, or raise the stream's retention",
                short(&shard.shard)
            )
        }
        Event::Shard(ShardEvent::AggregateDropped { shard, records, .. }) => format!(
            "{}: an aggregate of {records} records holds one of another shard, so none is given, \
             as KCL does",
            short(&shard.shard)
        ),
        Event::Shard(
            ShardEvent::FetchFailed { shard, error, .. }
            | ShardEvent::HandlerFailed { shard, error, .. },
        ) => {
            format!("{}: {}", short(&shard.shard), one_line(error))
        }
        Event::Shard(ShardEvent::AggregateCut { shard, at, records }) => format!(
            "{}: the aggregate at {at} is damaged, and {records} records of it are lost",
            short(&shard.shard)
        ),
        Event::Shard(ShardEvent::Parked { shard, at, error }) => {
            format!("{}: record {at} was put aside: {}", short(&shard.shard), one_line(error))
        }
        Event::Shard(ShardEvent::ParkFailed { shard, error, .. }) => {
            format!("{}: a record could not be put aside: {error}", short(&shard.shard))
        }
        Event::Shard(ShardEvent::CheckpointFailed { shard, error }) => {
            format!("{}: the checkpoint was not written: {error}", short(&shard.shard))
        }
        // For how long differs each time, and would make it another trouble.
        Event::Shard(ShardEvent::Stuck { shard, phase, remedy, .. }) => {
            format!("{} stands still: {phase:?}; what is done: {remedy:?}", short(&shard.shard))
        }
        // Told as a pause.
        Event::Producer(ProducerEvent::Retried { fault, .. }) if fault.refuses_caller() => {
            return None;
        }
        Event::Producer(ProducerEvent::Paused { stream, producer, detail, .. }) => format!(
            "{stream} refuses producer {producer}, so its records wait and are tried again: {detail}"
        ),
        Event::Producer(ProducerEvent::Retried { producer, detail, .. }) => {
            format!(
                "the stream did not take records of producer {producer}, they are sent again: {detail}"
            )
        }
        Event::Relay(event) => return relay_trouble(event),
        _ => return None,
    })
}

/// What went wrong with a relay, if something did.
fn relay_trouble(event: &RelayEvent) -> Option<String> {
    Some(match event {
        RelayEvent::Interrupted { table, error, .. } => {
            format!("the relay of {table} has to begin again: {error}")
        }
        RelayEvent::Held { table, row, .. } => format!(
            "row {row} of {table} and those behind it wait for a transaction that is still running: \
             see 'anabranch relay status'"
        ),
        RelayEvent::Kept { table, row, error } => format!(
            "row {row} of {table} is in the stream and can't be removed; it is tried again, and no \
             more rows are read once enough of them wait so: {error}"
        ),
        RelayEvent::Restored { table, row } => format!(
            "row {row} of {table} and perhaps others came to lie behind rows that were sent, as \
             after a restore; they are sent now"
        ),
        RelayEvent::Parked { row, key, why, .. } => format!(
            "row {row} can't be sent, so its key {key:?} is parked: {why}; 'anabranch relay skip \
             {row}' gives it up, 'anabranch relay retry KEY' sends it again"
        ),
        _ => return None,
    })
}

/// Who reads what from now on, if that changed.
fn change(event: &Event) -> Option<String> {
    Some(match event {
        Event::Lease(LeaseEvent::Joined { worker }) => format!("joined as {worker}"),
        Event::Lease(LeaseEvent::Left { .. }) => "left".to_owned(),
        Event::Lease(LeaseEvent::Taken { lease, .. }) => format!("took {}", short(&lease.shard)),
        Event::Lease(LeaseEvent::Passed { lease, to }) => {
            format!("passed {} to {to}", short(&lease.shard))
        }
        Event::Lease(LeaseEvent::Released { lease }) => {
            format!("gave {} back", short(&lease.shard))
        }
        Event::Lease(LeaseEvent::Fenced { worker }) => {
            format!("shut out {worker}, which is silent")
        }
        Event::Lease(LeaseEvent::Ended { lease, children }) => {
            let children: Vec<_> = children.iter().map(short).collect();
            format!("finished {}, followed by {}", short(&lease.shard), children.join(" and "))
        }
        Event::Relay(RelayEvent::Leading { table }) => format!("relays {table}"),
        Event::Relay(RelayEvent::StandingBy { table }) => {
            format!("another relay is at work on {table}; this one takes over when it goes")
        }
        Event::Relay(RelayEvent::Freed { key, .. }) => format!("key {key:?} goes on"),
        _ => return None,
    })
}
