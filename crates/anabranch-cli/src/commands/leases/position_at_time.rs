//! Conversion of a time to a checkpoint, for tables without times: the last record before it.

use crate::connection::AwsClients;
use crate::failure::CommandFailure;
use anabranch::stream::api::{ReadFrom, StreamApi, StreamError};
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Shard;
use anabranch_model::position::Position;
use anabranch_model::record::Record;
use std::time::Duration;

/// Offsets before the time from which records are searched, tried in turn, and finally from the
/// oldest record.
const WINDOWS_MS: [u64; 5] = [1_000, 60_000, 600_000, 3_600_000, 86_400_000];
/// Records per read.
const LIMIT: u32 = 10_000;
/// Pause before each read. A shard permits five reads per second, over all its readers.
const PAUSE: Duration = Duration::from_millis(250);
/// Attempts of a throttled call. Other readers may use up the shard's rate for a while.
const ATTEMPTS: u32 = 12;
/// Longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(5);

/// Returns the checkpoint after which the first record that arrived at or after `ms` follows.
pub(super) async fn last_before(
    aws: &AwsClients,
    stream: &StreamName,
    shard: &Shard,
    ms: u64,
) -> Result<Position, CommandFailure> {
    let windows = WINDOWS_MS.iter().map(|window| ReadFrom::AtTimestamp(ms.saturating_sub(*window)));
    for from in windows.chain([ReadFrom::TrimHorizon]) {
        if let Some(record) = last_of(aws, stream, shard, from, ms).await? {
            return Ok(Position::At { sequence: record.sequence, sub: last_sub(&record) });
        }
    }
    // The shard has no older record, so all of it is to be read.
    Ok(Position::TrimHorizon)
}

/// Returns the last record that arrived before `ms`, reading from `from`.
async fn last_of(
    aws: &AwsClients,
    stream: &StreamName,
    shard: &Shard,
    from: ReadFrom,
    ms: u64,
) -> Result<Option<Record>, CommandFailure> {
    let kinesis = &aws.kinesis;
    let mut next = Some(ask(aws, stream, || kinesis.iterator(stream, &shard.id, from)).await?);
    let mut last = None;
    while let Some(iterator) = next {
        tokio::time::sleep(PAUSE).await;
        let fetched = ask(aws, stream, || kinesis.records(stream, &iterator, LIMIT)).await?;
        for record in fetched.records {
            if record.arrival_ms >= ms {
                return Ok(last);
            }
            last = Some(record);
        }
        if fetched.behind_ms == 0 {
            break;
        }
        next = fetched.next;
    }
    Ok(last)
}

/// Retries a throttled call. If it stays throttled, the failure is not a usage error.
async fn ask<T, F>(
    aws: &AwsClients,
    stream: &StreamName,
    call: impl Fn() -> F,
) -> Result<T, CommandFailure>
where
    F: Future<Output = Result<T, StreamError>>,
{
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match call().await {
            Ok(reply) => return Ok(reply),
            Err(error) if error.fault.class().throttle => {}
            // Other errors are handled by the usual retries.
            Err(_) => return aws.ask(stream, call).await,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
    call().await.map_err(|error| {
        CommandFailure::result(format!(
            "{error}: other readers use the whole read limit of the shard; nothing was changed, so \
             try again when they read less"
        ))
    })
}

/// Returns the position of the last record in an aggregate, or 0 for a plain record.
fn last_sub(record: &Record) -> u64 {
    match decode(record, HashRange::ALL) {
        DecodedAggregate::Records(records) | DecodedAggregate::Partial { kept: records, .. } => {
            (records.len() as u64).saturating_sub(1)
        }
        DecodedAggregate::Plain(_) | DecodedAggregate::Misrouted { .. } => 0,
    }
}
