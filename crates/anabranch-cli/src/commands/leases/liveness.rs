//! Liveness of workers: heartbeats, each watched for its worker's lease time.

use super::application::ApplicationState;
use crate::failure::CommandFailure;
use crate::output::print_note;
use anabranch::clock::Clock;
use anabranch::lease::{AnyStore, LeaseStore};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, UnreadableRow, WorkerId, WorkerRow};
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval between polls.
const LOOK: Duration = Duration::from_millis(250);

/// Heartbeats by worker name.
pub(crate) type Heartbeats = BTreeMap<String, WorkerHeartbeat>;

/// Heartbeat of a worker, as one poll shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorkerHeartbeat {
    /// Counter that each heartbeat changes.
    counter: u64,
    /// Lease time from the worker's row or, in KCL's layout, from its owner's id.
    lease_time: Option<Duration>,
}

impl WorkerHeartbeat {
    /// Returns the time to watch this worker: `asked`, or its own lease time if longer.
    pub(crate) fn watch_time(self, asked: Duration) -> Duration {
        self.lease_time.map_or(asked, |own| own.max(asked))
    }
}

/// Reads the heartbeats of all workers that are not evicted or, in KCL's layout, of all leases with
/// an owner. Also returns the worker rows that can't be read.
pub(crate) async fn heartbeats(
    store: &AnyStore,
    streams: &[StreamName],
) -> Result<(Heartbeats, Vec<UnreadableRow<WorkerId>>), CommandFailure> {
    let (mut hearts, mut unreadable) = (Heartbeats::new(), Vec::new());
    match store.layout() {
        Layout::Native => {
            let look = store.poll().await?;
            let workers = look.workers;
            unreadable = look.unreadable;
            let alive = workers.iter().filter(|worker| worker.is_alive());
            hearts.extend(alive.map(|worker| {
                let lease_time = worker.lease_time_ms.map(Duration::from_millis);
                (worker.id.to_string(), WorkerHeartbeat { counter: worker.counter, lease_time })
            }));
        }
        Layout::Kcl => {
            for stream in streams {
                for row in store.list(stream).await?.rows {
                    if let Some(owner) = &row.owner {
                        let name = format!("{owner} ({})", row.key.shard);
                        // Two streams may have a shard of the same name.
                        let taken = hearts.contains_key(&name);
                        let name = if taken { format!("{owner} ({})", row.key) } else { name };
                        let lease_time = owner.kcl_lease_time_ms().map(Duration::from_millis);
                        hearts.insert(name, WorkerHeartbeat { counter: row.term, lease_time });
                    }
                }
            }
        }
    }
    Ok((hearts, unreadable))
}

/// Reads the heartbeats. Returns an error if a worker's row can't be read.
async fn all_hearts(
    store: &AnyStore,
    streams: &[StreamName],
) -> Result<Heartbeats, CommandFailure> {
    let (hearts, unreadable) = heartbeats(store, streams).await?;
    match unreadable.first() {
        None => Ok(hearts),
        Some(UnreadableRow { key, why }) => Err(CommandFailure::result(format!(
            "the row of worker {key} can't be read, so it may be alive: {why}: repair the row, or \
             delete it if the worker is dead"
        ))),
    }
}

/// Returns the workers whose counters changed between two polls, or that are new.
pub(crate) fn moved<'a>(before: &Heartbeats, now: &'a Heartbeats) -> Vec<&'a str> {
    let other = |(name, heart): &(&String, &WorkerHeartbeat)| {
        before.get(*name).is_none_or(|before| before.counter != heart.counter)
    };
    now.iter().filter(other).map(|(name, _)| name.as_str()).collect()
}

/// Watches until a heartbeat is seen or the longest lease time is over. Returns the workers alive.
pub(crate) async fn find_beating(
    store: &AnyStore,
    streams: &[StreamName],
    lease_time: Duration,
) -> Result<Vec<String>, CommandFailure> {
    let first = all_hearts(store, streams).await?;
    let Some(lease_time) = first.values().map(|heart| heart.watch_time(lease_time)).max() else {
        return Ok(Vec::new());
    };
    print_note!("watching {} heartbeats for up to {lease_time:?} …", first.len());
    let clock = Clock::machine();
    let until_ms = clock.now_ms() + u64::try_from(lease_time.as_millis()).unwrap_or(u64::MAX);
    while clock.now_ms() < until_ms {
        tokio::time::sleep(LOOK).await;
        let now = all_hearts(store, streams).await?;
        let beat = moved(&first, &now);
        if !beat.is_empty() {
            return Ok(beat.into_iter().map(str::to_owned).collect());
        }
    }
    Ok(Vec::new())
}

/// Returns an error while workers are alive.
pub(super) async fn require_stopped(
    standing: &ApplicationState,
    application: &str,
    lease_time: Duration,
) -> Result<(), CommandFailure> {
    let streams: Vec<StreamName> = standing.streams.iter().map(|s| s.stream.clone()).collect();
    let beating = find_beating(&standing.store, &streams, lease_time).await?;
    if beating.is_empty() {
        return Ok(());
    }
    Err(CommandFailure::usage(format!(
        "workers of {application} are alive: {}. Stop them first; nothing was written",
        beating.join(", ")
    )))
}

/// Returns the workers that are not evicted although no heartbeat was seen.
pub(super) fn dead_workers(standing: &ApplicationState) -> impl Iterator<Item = &WorkerRow> {
    standing.workers.iter().filter(|worker| worker.is_alive())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heart_beats_when_its_counter_is_another_or_when_it_is_new() {
        let hearts = |list: &[(&str, u64)]| -> Heartbeats {
            let heart = |counter| WorkerHeartbeat { counter, lease_time: None };
            list.iter().map(|(name, counter)| ((*name).to_owned(), heart(*counter))).collect()
        };
        let before = hearts(&[("a", 1), ("b", 2)]);
        assert_eq!(moved(&before, &before), Vec::<&str>::new());
        assert_eq!(moved(&before, &hearts(&[("a", 1)])), Vec::<&str>::new());
        assert_eq!(moved(&before, &hearts(&[("a", 0), ("c", 2)])), ["a", "c"]);
    }

    #[test]
    fn a_heart_is_watched_for_as_long_as_its_row_says_at_least() {
        let secs = Duration::from_secs;
        for (own, asked, expected) in [(None, 10, 10), (Some(60), 10, 60), (Some(2), 10, 10)] {
            let heart = WorkerHeartbeat { counter: 1, lease_time: own.map(secs) };
            assert_eq!(heart.watch_time(secs(asked)), secs(expected), "{own:?}, {asked}");
        }
    }
}
