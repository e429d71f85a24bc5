//! Start of a whole fleet on an empty store: time until every lease is owned, and the number of
//! conflicts between the workers.

use crate::counted::{CallCounts, Kind};
use crate::fleet::{Until, Worker, settings, spread, stream, wait};
use crate::{LEASES, WORKERS};
use anabranch::clock::{Clock, Rng};
use anabranch::lease::LeaseStore;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Time-out, well above the duration expected on any store.
const WITHIN: Duration = Duration::from_mins(2);
const EVERY: Duration = Duration::from_millis(10);

pub(crate) fn head() {
    println!("\n{WORKERS} workers start at once on an empty store and share {LEASES} leases");
    println!(
        "{:<16}{:>10}{:>16}{:>9}{:>16}{:>12}{:>8}{:>7}{:>9}{:>10}",
        "store",
        "rows made",
        "sent, refused",
        "owned",
        "takes, refused",
        "conflicts",
        "errors",
        "lists",
        "level",
        "each has"
    );
}

/// Measures one store. `conflicts` returns the number of writes that a store had to send again. The
/// workers do not leave, so the rows remain as after a crash of the whole fleet.
pub(crate) async fn run<S: LeaseStore + Clone>(
    name: &str,
    open: impl Fn(&str) -> Result<S, String>,
    conflicts: Option<fn(&S) -> u64>,
) -> Result<(), String> {
    let (stream, tally) = (stream(LEASES), Arc::<CallCounts>::default());
    let stores = (0..WORKERS).map(|_| open(crate::APPLICATION)).collect::<Result<Vec<S>, _>>()?;
    let begin = Instant::now();
    let mut starts = JoinSet::new();
    for (i, store) in stores.iter().cloned().enumerate() {
        let (tally, stream) = (tally.clone(), stream.clone());
        starts.spawn(async move {
            let settings = settings(&format!("worker-{i}"));
            let (clock, chance) = (Clock::machine(), Rng::of_system());
            Worker::start(store, &tally, &stream, settings, clock, chance).await
        });
    }
    let workers = starts.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let made = begin.elapsed();
    wait(&workers, LEASES, Until::Owned, EVERY, WITHIN).await?;
    let owned = begin.elapsed();
    wait(&workers, LEASES, Until::Level, EVERY, WITHIN).await?;
    let level = begin.elapsed();
    let (fewest, most) = spread(&workers);
    let again: Option<u64> = conflicts.map(|of| stores.iter().map(of).sum());
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    let pair = |kind| format!("{}, {}", tally.asked(kind), tally.refused(kind));
    println!(
        "{name:<16}{:>10}{:>16}{:>9}{:>16}{:>12}{:>8}{:>7}{:>9}{:>10}",
        seconds(made),
        pair(Kind::Create),
        seconds(owned),
        pair(Kind::Take),
        again.map_or_else(|| "–".to_owned(), |count| count.to_string()),
        tally.failed(),
        tally.asked(Kind::List),
        seconds(level),
        format!("{fewest}–{most}"),
    );
    Ok(())
}
