//! A time as a checkpoint, for tables that keep no time: the last record before it.

use crate::failure::Failure;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{ReadFrom, StreamApi};
use anabranch_model::aggregate::decode::{Decoded, decode};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Shard;
use anabranch_model::position::Position;
use anabranch_model::record::Record;

/// How far before the time records are looked for, one after another; then from the oldest on.
const WINDOWS_MS: [u64; 5] = [1_000, 60_000, 600_000, 3_600_000, 86_400_000];
/// Records of one read.
const LIMIT: u32 = 10_000;

/// The checkpoint from which a reader goes on with the first record that arrived at `ms` or later.
pub(super) async fn last_before(
    kinesis: &AwsKinesis,
    stream: &StreamName,
    shard: &Shard,
    ms: u64,
) -> Result<Position, Failure> {
    let windows = WINDOWS_MS.iter().map(|window| ReadFrom::AtTimestamp(ms.saturating_sub(*window)));
    for from in windows.chain([ReadFrom::TrimHorizon]) {
        if let Some(record) = last_of(kinesis, stream, shard, from, ms).await? {
            return Ok(Position::At { sequence: record.sequence, sub: last_sub(&record) });
        }
    }
    // Nothing of the shard is older, so all of it is to be read.
    Ok(Position::TrimHorizon)
}

/// The last record that arrived before `ms`, reading from here.
async fn last_of(
    kinesis: &AwsKinesis,
    stream: &StreamName,
    shard: &Shard,
    from: ReadFrom,
    ms: u64,
) -> Result<Option<Record>, Failure> {
    let mut next = Some(kinesis.iterator(stream, &shard.id, from).await.map_err(Failure::usage)?);
    let mut last = None;
    while let Some(iterator) = next {
        let fetched = kinesis.records(stream, &iterator, LIMIT).await.map_err(Failure::usage)?;
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

/// The place of the last record inside an aggregate; 0 for a plain record.
fn last_sub(record: &Record) -> u64 {
    match decode(record, HashRange::ALL) {
        Decoded::Records(records) | Decoded::Partial { kept: records, .. } => {
            (records.len() as u64).saturating_sub(1)
        }
        Decoded::Plain(_) | Decoded::OutOfRange { .. } => 0,
    }
}
