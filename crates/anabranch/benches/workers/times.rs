//! Time until the next record is processed by another worker: medians of five runs.

use crate::stage::{DeliveryLine, KEYS, WorkerFixture};
use crate::worker::LEASE_TIME_MS;
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

const RUNS: usize = 5;
const SHARDS: i64 = 8;

/// Result of one run: milliseconds, and the number of duplicates.
type TimedRun = Result<(u64, usize), String>;

pub(crate) async fn run() -> Result<(), String> {
    println!("{RUNS} runs each, {KEYS} keys, a lease time of {LEASE_TIME_MS} ms, leases in SQLite");
    println!("{:<44}{:>9}{:>18}{:>8}  KCL", "", "median", "least to most", "twice");
    row("cold start to the first record", cold_start, "62-102 s").await?;
    row("a second worker owns its half", second_worker, "39-149 s").await?;
    row("SIGTERM to the last shard's next record", || taken_over("TERM"), "34-68 s").await?;
    row("kill -9 to the last shard's next record", || taken_over("KILL"), "38-189 s").await?;
    row("split to the children's first record", children, "").await
}

async fn row<F: Future<Output = TimedRun>>(
    what: &str,
    run: impl Fn() -> F,
    kcl: &str,
) -> Result<(), String> {
    let (mut times, mut again) = (Vec::new(), 0);
    for _ in 0..RUNS {
        let (ms, twice) = run().await.map_err(|why| format!("{what}: {why}"))?;
        times.push(ms);
        again += twice;
    }
    times.sort_unstable();
    let spread = format!("{} to {}", times[0], times[RUNS - 1]);
    println!("{what:<44}{:>6} ms{spread:>15} ms{again:>8}  {kcl}", times[RUNS / 2]);
    Ok(())
}

/// Returns the keys that were last processed by worker `by`.
fn keys_of(lines: &[DeliveryLine], by: &str) -> BTreeSet<usize> {
    let mut owner = vec![""; KEYS];
    for line in lines {
        owner[line.key] = &line.by;
    }
    (0..KEYS).filter(|key| owner[*key] == by).collect()
}

/// Waits until every key has been processed.
async fn all_flow(stage: &WorkerFixture) -> Result<(), String> {
    let all = |lines: &[DeliveryLine]| {
        let keys: BTreeSet<_> = lines.iter().map(|line| line.key).collect();
        (keys.len() == KEYS).then_some(())
    };
    stage.until("every key is handled", all).await
}

async fn cold_start() -> TimedRun {
    let mut stage = WorkerFixture::new(SHARDS).await?;
    stage.begin_to_put();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun_ms = stage.now_ms();
    stage.spawn("a")?;
    let first = stage.until("a record is handled", |l| l.first().map(|line| line.at_ms)).await?;
    Ok((first.saturating_sub(begun_ms), stage.close().await?))
}

async fn second_worker() -> TimedRun {
    let (stage, ms) = two_workers().await?;
    Ok((ms, stage.close().await?))
}

/// Starts two workers with half of the shards each. Returns the time that the second one needed to
/// get its half.
async fn two_workers() -> Result<(WorkerFixture, u64), String> {
    let mut stage = WorkerFixture::new(SHARDS).await?;
    stage.begin_to_put();
    stage.spawn("a")?;
    all_flow(&stage).await?;
    let begun_ms = stage.now_ms();
    stage.spawn("b")?;
    // The eight shards have equal hash ranges, so half of them own about half of the keys. Fewer
    // are required here.
    let half = |lines: &[DeliveryLine]| {
        let mut keys = BTreeSet::new();
        let by_b = lines.iter().filter(|line| line.by == "b");
        let half = by_b.filter(|line| keys.insert(line.key)).nth(KEYS * 3 / 8);
        half.map(|line| line.at_ms)
    };
    let at_ms = stage.until("the second worker has its half", half).await?;
    // Wait for the last hand-over to finish.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    Ok((stage, at_ms.saturating_sub(begun_ms)))
}

async fn taken_over(signal: &str) -> TimedRun {
    let (mut stage, _) = two_workers().await?;
    let moved = keys_of(&stage.lines(), "a");
    let at_ms = stage.end("a", signal)?;
    let last = |lines: &[DeliveryLine]| {
        let mut left = moved.clone();
        let by_b = lines.iter().filter(|line| line.by == "b" && line.at_ms >= at_ms);
        let mut last_ms = None;
        for line in by_b {
            if left.remove(&line.key) && left.is_empty() {
                last_ms = Some(line.at_ms);
            }
        }
        last_ms
    };
    let last_ms = stage.until("the other worker has taken over", last).await?;
    Ok((last_ms.saturating_sub(at_ms), stage.close().await?))
}

async fn children() -> TimedRun {
    let mut stage = WorkerFixture::new(1).await?;
    stage.begin_to_put();
    stage.spawn("a")?;
    all_flow(&stage).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (at_ms, rounds) = (stage.now_ms(), stage.rounds());
    stage.split()?;
    // Records put after the split are in the children.
    let first = |lines: &[DeliveryLine]| {
        let mut keys: BTreeSet<usize> = (0..KEYS).collect();
        let of_children = lines.iter().filter(|line| line.number > rounds);
        of_children.filter_map(|line| (keys.remove(&line.key)).then_some(line.at_ms)).nth(KEYS - 1)
    };
    let first_ms = stage.until("the children are read", first).await?;
    Ok((first_ms.saturating_sub(at_ms), stage.close().await?))
}
