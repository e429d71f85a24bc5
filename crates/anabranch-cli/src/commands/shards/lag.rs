//! Lag of a lease, measured from outside: the age of its oldest unfinished record.

use crate::time_spec;
use anabranch::clock::Clock;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{ReadFrom, StreamApi, StreamError};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Lease, LeaseKey};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::Position;
use anabranch_model::retry::Fault;
use std::collections::BTreeMap;
use std::fmt;
use tokio::task::JoinSet;

/// Number of shards read concurrently.
const TOGETHER: usize = 8;
/// Maximum reads per shard. After them the service's own figure is used. A range without records
/// may take several reads.
const READS: usize = 20;

/// Lag of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseLag {
    /// No record is waiting.
    None,
    /// Age of the oldest waiting record, in milliseconds.
    Behind(u64),
    /// The record at the checkpoint is past the retention period.
    Trimmed,
    /// The lag can't be determined, with the reason.
    Unknown(String),
}

impl LeaseLag {
    /// Returns the lag in milliseconds, if known.
    pub(crate) fn ms(&self) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::Behind(ms) => Some(*ms),
            Self::Trimmed | Self::Unknown(_) => None,
        }
    }
}

impl fmt::Display for LeaseLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("0"),
            Self::Behind(ms) => f.write_str(&time_spec::span(*ms)),
            Self::Trimmed => f.write_str("trimmed"),
            Self::Unknown(_) => f.write_str("?"),
        }
    }
}

/// Returns the lags of all unfinished leases whose shard is listed. Makes a few reads per shard.
pub(crate) async fn lags(
    kinesis: &AwsKinesis,
    lineage: &Lineage,
    rows: &BTreeMap<ShardId, Lease>,
) -> BTreeMap<ShardId, LeaseLag> {
    let mut waiting = rows.values().filter(|row| !row.is_ended() && lineage.names(&row.key.shard));
    let mut reading = JoinSet::new();
    let mut lags = BTreeMap::new();
    loop {
        while reading.len() < TOGETHER
            && let Some(row) = waiting.next()
        {
            let (kinesis, key) = (kinesis.clone(), row.key.clone());
            let from = row.checkpoint.lowest();
            reading.spawn(async move {
                let lag = lag(&kinesis, &key, from).await;
                (key.shard, lag)
            });
        }
        match reading.join_next().await {
            None => return lags,
            Some(Ok((shard, lag))) => {
                lags.insert(shard, lag);
            }
            Some(Err(_)) => {}
        }
    }
}

async fn lag(kinesis: &AwsKinesis, key: &LeaseKey, from: Position) -> LeaseLag {
    let at = match from {
        Position::AtTimestamp(ms) => ReadFrom::AtTimestamp(ms),
        Position::TrimHorizon => ReadFrom::TrimHorizon,
        Position::At { sequence, .. } => ReadFrom::After(sequence),
        Position::Latest | Position::ShardEnd => return LeaseLag::None,
    };
    match oldest(kinesis, key, at).await {
        Ok(lag) => lag,
        Err(error) if error.fault == Fault::Invalid || error.fault == Fault::Missing => {
            LeaseLag::Trimmed
        }
        Err(error) => LeaseLag::Unknown(error.to_string()),
    }
}

async fn oldest(
    kinesis: &AwsKinesis,
    key: &LeaseKey,
    at: ReadFrom,
) -> Result<LeaseLag, StreamError> {
    let mut next = Some(kinesis.iterator(&key.stream, &key.shard, at).await?);
    let mut behind_ms = 0;
    for _ in 0..READS {
        let Some(iterator) = next else { return Ok(LeaseLag::None) };
        let fetched = kinesis.records(&key.stream, &iterator, 1).await?;
        if let Some(record) = fetched.records.first() {
            let age_ms = Clock::machine().wall_ms().saturating_sub(record.arrival_ms);
            return Ok(LeaseLag::Behind(age_ms.max(fetched.behind_ms)));
        }
        behind_ms = fetched.behind_ms;
        if behind_ms == 0 {
            return Ok(LeaseLag::None);
        }
        next = fetched.next;
    }
    Ok(LeaseLag::Behind(behind_ms))
}
