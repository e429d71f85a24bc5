//! A time as a checkpoint, for tables that keep no time: the last record before it.

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

/// How far before the time records are looked for, one after another; then from the oldest on.
const WINDOWS_MS: [u64; 5] = [1_000, 60_000, 600_000, 3_600_000, 86_400_000];
/// Records of one read.
const LIMIT: u32 = 10_000;
/// The pause before each read. A shard takes five a second, from all its readers together.
const PAUSE: Duration = Duration::from_millis(250);
/// How often a call is made that may pass later. Others may use up the shard's reads for a while.
const ATTEMPTS: u32 = 12;
/// The longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(5);

/// The checkpoint from which a reader goes on with the first record that arrived at `ms` or later.
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
    // Nothing of the shard is older, so all of it is to be read.
    Ok(Position::TrimHorizon)
}

/// The last record that arrived before `ms`, reading from here.
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

/// Makes a call until the shard has room for it. Where it never has, nobody typed anything wrong.
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
            // Other troubles are told as everywhere, after the usual attempts.
            Err(_) => return aws.ask(stream, call).await,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
    call().await.map_err(|error| {
        CommandFailure::result(format!(
            "{error}: others read the shard as often as it allows; nothing was changed, so try \
             again when they read less"
        ))
    })
}

/// The place of the last record inside an aggregate; 0 for a plain record.
fn last_sub(record: &Record) -> u64 {
    match decode(record, HashRange::ALL) {
        DecodedAggregate::Records(records) | DecodedAggregate::Partial { kept: records, .. } => {
            (records.len() as u64).saturating_sub(1)
        }
        DecodedAggregate::Plain(_) | DecodedAggregate::Misrouted { .. } => 0,
    }
}
