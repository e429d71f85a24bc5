//! First start on a stream whose shards all have parents past retention: each shard needs proof
//! that its parents are gone.

use crate::counted::{CallCounts, Kind};
use crate::fleet::{Until, Worker, merged_stream, settings, split_stream, wait};
use anabranch::clock::{Clock, Rng};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SHARDS: u32 = 10_000;
/// Duration of each call to the store.
const CALL_MS: u64 = 4;
/// Time-out, well above the expected duration.
const WITHIN: Duration = Duration::from_mins(5);
const EVERY: Duration = Duration::from_millis(20);

/// Maximum number of single-row reads per shard and worker.
const MOST_READS: f64 = 1.2;

/// Measures one worker and four workers, on shards from splits and from merges.
pub(crate) async fn run() -> Result<(), String> {
    println!("\nA first start on {SHARDS} shards with trimmed parents, {CALL_MS} ms a store call");
    println!(
        "{:<10}{:<9}{:>14}{:>13}{:>8}{:>26}",
        "workers", "born by", "first shard", "last shard", "lists", "reads, shard and worker"
    );
    for (born, stream) in
        [("splits", split_stream as fn(u32) -> LocalKinesis), ("merges", merged_stream)]
    {
        for workers in [1, 4] {
            measure(born, &stream(SHARDS), workers).await?;
        }
    }
    Ok(())
}

async fn measure(born: &str, stream: &LocalKinesis, workers: u32) -> Result<(), String> {
    let store = MemoryStore::new();
    let tally = Arc::new(CallCounts::slow(CALL_MS));
    let (begin, mut starts) = (Instant::now(), JoinSet::new());
    for i in 0..workers {
        let (store, tally, stream) = (store.clone(), tally.clone(), stream.clone());
        starts.spawn(async move {
            let settings = settings(&format!("worker-{i}"));
            let (clock, chance) = (Clock::machine(), Rng::of_system());
            Worker::start(store, &tally, &stream, settings, clock, chance).await
        });
    }
    let mut fleet = starts.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    wait(&fleet, SHARDS as usize, Until::Owned, EVERY, WITHIN).await?;
    let last = begin.elapsed();
    let mut first = last;
    for worker in &mut fleet {
        first = first.min(worker.first_grip().await?.duration_since(begin));
    }
    let reads = tally.asked(Kind::OtherRead);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people, far below 2^52")]
    let by_shard = reads as f64 / f64::from(SHARDS * workers);
    println!(
        "{workers:<10}{born:<9}{:>12.2} s{:>11.2} s{:>8}{by_shard:>26.2}",
        first.as_secs_f64(),
        last.as_secs_f64(),
        tally.asked(Kind::List)
    );
    if by_shard > MOST_READS {
        return Err(format!("{by_shard:.2} reads for each shard and worker, {MOST_READS} at most"));
    }
    Ok(())
}
