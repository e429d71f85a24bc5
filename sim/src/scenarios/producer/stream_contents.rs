//! Reading a whole stream: everything in it, and the records that a reader by KCL's rules gets.

use crate::checkers::producer::{StoredRecord, StreamContents};
use crate::faults::store::at_once;
use crate::workload::{STREAM, Workload};
use anabranch::stream::api::{ReadFrom, ShardFilter, StreamApi};
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::StreamName;
use anabranch_model::record::{Record, UserRecord};

/// Adds the contents of the stream: shards in the order of their creation, as KCL delivers them.
pub(super) fn read(workload: &Workload, shown: &mut StreamContents) {
    let (api, stream) = (workload.api(), StreamName::from(STREAM));
    let Ok(list) = at_once(api.list_shards(&stream, ShardFilter::All)) else { return };
    let mut shards = list.shards;
    shards.sort_by(|one, other| one.id.cmp(&other.id));
    for shard in shards {
        let mut next = at_once(api.iterator(&stream, &shard.id, ReadFrom::TrimHorizon)).ok();
        while let Some(iterator) = next.take() {
            let Ok(fetched) = at_once(api.records(&stream, &iterator, 10_000)) else { break };
            let empty = fetched.records.is_empty();
            for record in fetched.records {
                let stored = users(&record, HashRange::ALL);
                shown.stored.extend(stored.iter().map(|user| name_of(&user.data)));
                shown.delivered.extend(users(&record, shard.range).iter().map(|user| {
                    StoredRecord {
                        name: name_of(&user.data),
                        shard: shard.id.to_string(),
                        sequence: user.sequence,
                        sub: user.sub,
                    }
                }));
            }
            next = fetched.next.filter(|_| !empty);
        }
    }
}

fn users(record: &Record, range: HashRange) -> Vec<UserRecord> {
    match decode(record, range) {
        DecodedAggregate::Plain(_) => vec![record.clone().into()],
        DecodedAggregate::Records(records) => records.collect(),
        // Readers drop it whole, and a broken one would show as missing.
        DecodedAggregate::Misrouted { .. } | DecodedAggregate::Partial { .. } => Vec::new(),
    }
}

/// Returns the record name encoded in the data.
fn name_of(data: &[u8]) -> (String, u64) {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.split(':');
    let key = parts.next().unwrap_or_default().to_owned();
    (key, parts.next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX))
}
