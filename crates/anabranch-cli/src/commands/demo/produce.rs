//! Producer of the demo: puts numbered records of each key with the library's ordered producer.

use super::DemoOptions;
use super::stream::DemoStream;
use crate::failure::CommandFailure;
use anabranch::producer::{Outcome, Producer};
use anabranch_model::ids::ShardId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Pause between two rounds of puts.
const ROUND_MS: u64 = 10;
/// Time for the remaining records after the last put.
const CLOSE: Duration = Duration::from_secs(20);
/// Maximum tickets waiting to be counted.
const WAITING: usize = 65_536;

/// A record: its key's number and its number within the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DemoRecord {
    pub(super) key: u32,
    pub(super) number: u64,
}

impl DemoRecord {
    /// Formats the payload of this record.
    fn payload(self) -> String {
        format!("{}:{}", self.key, self.number)
    }

    /// Parses a payload.
    pub(super) fn read(payload: &str) -> Option<Self> {
        let (key, number) = payload.split_once(':')?;
        Some(Self { key: key.parse().ok()?, number: number.parse().ok()? })
    }
}

/// Log of the puts so far.
#[derive(Default)]
pub(super) struct PutLog(Mutex<PutLogState>);

#[derive(Default)]
struct PutLogState {
    /// Records that the stream accepted, in order for each key.
    accepted: Vec<DemoRecord>,
    /// Number of accepted records per shard.
    by_shard: BTreeMap<ShardId, u64>,
    /// Number of records that were refused or have an unknown outcome.
    failed: usize,
}

impl PutLog {
    fn lock(&self) -> MutexGuard<'_, PutLogState> {
        // Counts are changed in single steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the accepted records.
    pub(super) fn accepted(&self) -> Vec<DemoRecord> {
        self.lock().accepted.clone()
    }

    /// Returns the number of accepted records.
    pub(super) fn count(&self) -> usize {
        self.lock().accepted.len()
    }

    /// Returns the number of records that were refused or have an unknown outcome.
    pub(super) fn failed(&self) -> usize {
        self.lock().failed
    }

    /// Returns the number of records accepted by a shard.
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

/// Puts records at the configured rate for the configured time.
pub(super) async fn run(
    stream: &DemoStream,
    options: &DemoOptions,
    put: &PutLog,
) -> Result<(), CommandFailure> {
    let producer = Producer::new(stream.name.clone());
    let producer = producer
        .with_kinesis(stream.kinesis.clone())
        .start()
        .await
        .map_err(CommandFailure::result)?;
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
                // The counting task lives as long as this one.
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
