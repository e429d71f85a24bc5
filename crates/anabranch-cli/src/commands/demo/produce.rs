//! Puts numbered records of each key, with the library's ordered producer.

use super::DemoOptions;
use super::stream::DemoStream;
use crate::failure::CommandFailure;
use anabranch::producer::{Outcome, Producer};
use anabranch_model::ids::ShardId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The pause between two rounds of puts.
const ROUND_MS: u64 = 10;
/// How long the rest may take once all is put.
const CLOSE: Duration = Duration::from_secs(20);
/// Tickets that may wait to be counted.
const WAITING: usize = 65_536;

/// One record: its key's number and its number within the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DemoRecord {
    pub(super) key: u32,
    pub(super) number: u64,
}

impl DemoRecord {
    /// The payload of this record.
    fn payload(self) -> String {
        format!("{}:{}", self.key, self.number)
    }

    /// Reads a payload back.
    pub(super) fn read(payload: &str) -> Option<Self> {
        let (key, number) = payload.split_once(':')?;
        Some(Self { key: key.parse().ok()?, number: number.parse().ok()? })
    }
}

/// What was put so far.
#[derive(Default)]
pub(super) struct PutLog(Mutex<PutLogState>);

#[derive(Default)]
struct PutLogState {
    /// What the stream accepted, each key in order.
    accepted: Vec<DemoRecord>,
    /// How many of them each shard took.
    by_shard: BTreeMap<ShardId, u64>,
    /// Records that have no certain place.
    failed: usize,
}

impl PutLog {
    fn lock(&self) -> MutexGuard<'_, PutLogState> {
        // Counts are changed in single steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the stream accepted.
    pub(super) fn accepted(&self) -> Vec<DemoRecord> {
        self.lock().accepted.clone()
    }

    /// How many it accepted.
    pub(super) fn count(&self) -> usize {
        self.lock().accepted.len()
    }

    /// How many records have no certain place.
    pub(super) fn failed(&self) -> usize {
        self.lock().failed
    }

    /// How many records a shard took.
    pub(super) fn of_shard(&self, shard: &ShardId) -> u64 {
        self.lock().by_shard.get(shard).copied().unwrap_or(0)
    }

    fn note(&self, item: DemoRecord, outcome: &Outcome) {
        let mut placed = self.lock();
        if let Outcome::Placed { shard, .. } = outcome {
            placed.accepted.push(item);
            *placed.by_shard.entry(shard.clone()).or_default() += 1;
        } else {
            placed.failed += 1;
        }
    }
}

/// Puts as many records as the time holds at the rate.
pub(super) async fn run(
    stream: &DemoStream,
    options: &DemoOptions,
    put: &PutLog,
) -> Result<(), CommandFailure> {
    let producer = Producer::new(stream.name.clone());
    let producer = producer.start(stream.kinesis.clone()).await.map_err(CommandFailure::result)?;
    let (tickets, mut waiting) = mpsc::channel(WAITING);
    let putting = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(ROUND_MS));
        let total = options.seconds * u64::from(options.rate);
        let keys = u64::from(options.keys);
        let mut done = 0;
        for round in 1.. {
            ticks.tick().await;
            let due = (round * ROUND_MS * u64::from(options.rate) / 1_000).min(total);
            while done < due {
                let key = u32::try_from(done % keys).unwrap_or(0);
                let item = DemoRecord { key, number: done / keys };
                let ticket = producer.put(format!("customer-{key}"), item.payload()).await;
                let ticket = ticket.map_err(CommandFailure::result)?;
                // The counting half lives as long as this one.
                let _ = tickets.send((item, ticket)).await;
                done += 1;
            }
            if done == total {
                break;
            }
        }
        producer.close(CLOSE).await;
        drop(tickets);
        Ok(())
    };
    let counting = async {
        while let Some((item, ticket)) = waiting.recv().await {
            put.note(item, &ticket.await);
        }
        Ok(())
    };
    tokio::try_join!(putting, counting).map(drop)
}
