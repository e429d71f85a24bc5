//! A first start on a stream whose shards all have parents past retention: each gate needs proof.

use crate::counted::{Kind, Tally};
use crate::fleet::{Until, Worker, settings, split_stream, wait};
use anabranch::clock::{Chance, Clock};
use anabranch::lease::MemoryStore;
use anabranch_model::lease::Layout;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SHARDS: u32 = 10_000;
/// How long each call of the store takes.
const CALL_MS: u64 = 4;
/// Longer than any fleet should need.
const WITHIN: Duration = Duration::from_mins(5);
const EVERY: Duration = Duration::from_millis(20);

/// Measures one worker and four.
pub(crate) async fn run() -> Result<(), String> {
    println!("\nA first start on {SHARDS} shards with trimmed parents, {CALL_MS} ms a store call");
    println!(
        "{:<10}{:>14}{:>13}{:>8}{:>26}",
        "workers", "first shard", "last shard", "lists", "reads, shard and worker"
    );
    for workers in [1, 4] {
        measure(workers).await?;
    }
    Ok(())
}

async fn measure(workers: u32) -> Result<(), String> {
    let (stream, store) = (split_stream(SHARDS), MemoryStore::new(Layout::Native));
    let tally = Arc::new(Tally::slow(CALL_MS));
    let (begin, mut starts) = (Instant::now(), JoinSet::new());
    for i in 0..workers {
        let (store, tally, stream) = (store.clone(), tally.clone(), stream.clone());
        starts.spawn(async move {
            let settings = settings(&format!("worker-{i}"));
            let (clock, chance) = (Clock::machine(), Chance::of_system());
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
        "{workers:<10}{:>12.2} s{:>11.2} s{:>8}{by_shard:>26.2}",
        first.as_secs_f64(),
        last.as_secs_f64(),
        tally.asked(Kind::List)
    );
    Ok(())
}
