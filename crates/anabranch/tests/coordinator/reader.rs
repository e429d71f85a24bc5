//! Reader of the shards of one worker: delivers at each tick, and reports to the fleet's watch.

use crate::fleet::{Api, DeliveryWatch};
use crate::troubled::FaultyStore;
use anabranch::lease::{FinishReason, LeaseHandle, MissingShardResult, ShardEndResult, StopReason};
use anabranch::stream::api::{ChildShard, ReadFrom, StreamApi, StreamError};
use anabranch_model::retry::Fault;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Behavior of the readers.
#[derive(Debug, Default)]
pub(crate) struct ReaderBehavior {
    /// Duration of a drain, in milliseconds.
    pub(crate) drain_ms: AtomicU64,
    /// Shard whose handler cannot be stopped, or `all`.
    pub(crate) stuck: Mutex<Option<String>>,
    /// Shard whose end was read while its last records are still being handled.
    pub(crate) held_up: Mutex<Option<String>>,
    /// Shards that fail at once.
    pub(crate) failing: Mutex<Option<String>>,
}

impl ReaderBehavior {
    fn names(of: &Mutex<Option<String>>, shard: &str) -> bool {
        of.lock().unwrap().as_deref().is_some_and(|name| name == shard || name == "all")
    }
}

/// Runs a reader for every lease handle that arrives.
pub(crate) async fn run(
    mut grips: mpsc::Receiver<LeaseHandle<FaultyStore, Api>>,
    api: Arc<Api>,
    watch: DeliveryWatch,
    manners: Arc<ReaderBehavior>,
) {
    let mut shards = JoinSet::new();
    while let Some(grip) = grips.recv().await {
        shards.spawn(read(grip, api.clone(), watch.clone(), manners.clone()));
        while shards.try_join_next().is_some() {}
    }
}

async fn read(
    grip: LeaseHandle<FaultyStore, Api>,
    api: Arc<Api>,
    watch: DeliveryWatch,
    manners: Arc<ReaderBehavior>,
) {
    let shard = grip.key().shard.as_str().to_owned();
    let _unharmed = watch.began(&grip);
    if ReaderBehavior::names(&manners.failing, &shard) {
        grip.finish(FinishReason::Failed);
        return;
    }
    let stuck = || ReaderBehavior::names(&manners.stuck, &shard);
    let (mut refused, mut read_to_end) = (false, None);
    loop {
        let stop = tokio::select! {
            biased;
            stop = grip.wait_for_stop() => Some(stop),
            () = tokio::time::sleep(Duration::from_millis(20)) => None,
        };
        match stop {
            Some(StopReason::Lost) => {
                grip.finish(FinishReason::Drained);
                return;
            }
            Some(StopReason::Drain { .. }) if stuck() => {
                refused = true;
                grip.refuse_hand_over().await;
            }
            Some(StopReason::Drain { .. }) => {
                let drain_ms = manners.drain_ms.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(drain_ms)).await;
                grip.finish(FinishReason::Drained);
                return;
            }
            None if refused && !stuck() => {
                refused = false;
                grip.allow_hand_over().await;
            }
            None => {}
        }
        if grip.may_deliver() {
            watch.delivered(&grip);
            let end = match read_to_end.clone() {
                Some(children) => Ok(Some(children)),
                None => at_end(&grip, &api).await,
            };
            let ended = match end {
                Ok(Some(children)) if ReaderBehavior::names(&manners.held_up, &shard) => {
                    read_to_end = Some(children);
                    false
                }
                Ok(Some(children)) => matches!(grip.end(&children).await, ShardEndResult::Done),
                Err(error) if error.fault == Fault::Missing => {
                    matches!(grip.resolve_missing().await, MissingShardResult::Ended)
                }
                Ok(None) | Err(_) => false,
            };
            if ended {
                grip.finish(FinishReason::Ended);
                return;
            }
        }
    }
}

/// Returns the children of a closed shard. The tests put no records.
async fn at_end(
    grip: &LeaseHandle<FaultyStore, Api>,
    api: &Api,
) -> Result<Option<Vec<ChildShard>>, StreamError> {
    let key = grip.key();
    let iterator = api.iterator(&key.stream, &key.shard, ReadFrom::TrimHorizon).await?;
    let fetched = api.records(&key.stream, &iterator, 10).await?;
    Ok(fetched.next.is_none().then_some(fetched.children))
}
