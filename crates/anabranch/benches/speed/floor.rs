//! The floor under the producer: containers that are built once, sent again and again through the
//! same client. What the producer costs above it is its own; what is below is the wire's.

use crate::cpu;
use crate::endpoint::Endpoint;
use crate::produce::{keys, per};
use anabranch::stream::WireFormat;
use anabranch::stream::api::{PutEntry, PutEntryResult, StreamApi};
use anabranch_model::aggregate::encode::{AggregateBuilder, AggregateRecord as Part, PushResult};
use anabranch_model::hash::HashKey;
use std::time::Duration;

/// As many records in a request as are outstanding in the case beside it.
const RECORDS: usize = 5_000;

/// About what a producer waits between two requests when its records are few.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// Sends as many records as asked, and gives the CPU for each in nanoseconds. A pause before each
/// request shows what a processor takes for being idle in between.
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

/// One container for each shard.
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
