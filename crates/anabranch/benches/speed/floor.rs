//! Lower bound for the producer: sends prebuilt aggregates repeatedly through the same client. The
//! difference to the producer is the producer's own cost; the rest is the cost of sending.

use crate::cpu;
use crate::endpoint::Endpoint;
use crate::produce::{keys, per};
use anabranch::stream::WireFormat;
use anabranch::stream::api::{PutEntry, PutEntryResult, StreamApi};
use anabranch_model::aggregate::encode::{AggregateBuilder, AggregateRecord as Part, PushResult};
use anabranch_model::hash::HashKey;
use std::time::Duration;

/// Records per request; the same as the records outstanding in the case that this is compared with.
const RECORDS: usize = 5_000;

/// Approximate pause between two requests of a producer with few records.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// Sends at least `records` records, and returns the CPU time per record in nanoseconds. A pause
/// before each request shows the cost of letting the processor go idle in between.
pub(crate) async fn put(
    endpoint: &Endpoint,
    bytes: usize,
    records: u64,
    pause: Option<Duration>,
) -> Result<f64, String> {
    let kinesis = endpoint.ours(WireFormat::Cbor);
    let stream = "s".into();
    let containers = containers(bytes);
    let requests = records.div_ceil(RECORDS as u64);
    let mut before = 0;
    for request in 0..=requests {
        if request == 1 {
            before = cpu::spent_ns();
        }
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let results = kinesis.put_records(&stream, &containers).await;
        let results = results.map_err(|error| error.to_string())?;
        if !results.iter().all(|result| matches!(result, PutEntryResult::Placed(_))) {
            return Err(format!("an entry was not placed: {results:?}"));
        }
    }
    Ok(per(cpu::spent_ns() - before, requests * RECORDS as u64))
}

/// Builds one aggregate per shard.
fn containers(bytes: usize) -> Vec<PutEntry> {
    let data = vec![b'x'; bytes];
    let keys = keys();
    let mut builders: Vec<AggregateBuilder> =
        vec![AggregateBuilder::new(); crate::replies::SHARDS as usize];
    for key in keys.iter().cycle().take(RECORDS) {
        let shard = HashKey::of_partition_key(key).0 / (u128::MAX / builders.len() as u128 + 1);
        let part = Part { partition_key: key, explicit_hash_key: None, data: &data };
        let shard = usize::try_from(shard).expect("there are few shards");
        assert_eq!(builders[shard].add_within(&part, usize::MAX), PushResult::Added);
    }
    let sealed = builders.iter_mut().filter_map(|builder| Some(builder.close()?.seal()));
    sealed
        .map(|one| PutEntry { key: one.partition_key, hash: one.explicit_hash_key, data: one.data })
        .collect()
}
