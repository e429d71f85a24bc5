//! Planned hand-over between two coordinators: from the second one's request to its lease handle.

use crate::fleet::{Until, Worker, settings, stream, wait};
use anabranch::clock::{Clock, Rng};
use anabranch::lease::{CoordinatorSettings, LeaseStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Number of concurrent pairs of coordinators, each in an application of its own.
const PAIRS: usize = 5;
/// Number of hand-overs per pair.
const ROUNDS: usize = 4;
/// Longer than a coordinator polls at its fast rate after a change.
const CALM_MS: u64 = 2_500;
const EVERY: Duration = Duration::from_millis(10);
const WITHIN: Duration = Duration::from_mins(1);

/// Durations of hand-overs, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct HandOvers(Vec<Duration>);

impl HandOvers {
    pub(crate) const COUNT: usize = PAIRS * ROUNDS;

    pub(crate) fn median_ms(&self) -> u128 {
        self.0[self.0.len() / 2].as_millis()
    }

    pub(crate) fn longest_ms(&self) -> u128 {
        self.0[self.0.len() - 1].as_millis()
    }
}

pub(crate) fn head() {
    println!("\nA planned hand-over, from the request to the grip, median of {}", HandOvers::COUNT);
    println!("{:<16}{:>16}{:>12}{:>12}", "store", "look every", "median", "longest");
}

pub(crate) fn row(name: &str, look: &str, seen: &HandOvers) {
    let ms = |ms: u128| format!("{ms} ms");
    println!("{name:<16}{look:>16}{:>12}{:>12}", ms(seen.median_ms()), ms(seen.longest_ms()));
}

/// Measures one store. `tune` changes the default settings of both workers.
pub(crate) async fn run<S: LeaseStore>(
    open: impl Fn(&str) -> Result<S, String>,
    tune: fn(CoordinatorSettings) -> CoordinatorSettings,
    label: &str,
) -> Result<HandOvers, String> {
    let mut pairs = JoinSet::new();
    for pair in 0..PAIRS {
        let application = format!("pair-{label}-{pair}");
        let stores = (0..=ROUNDS).map(|_| open(&application)).collect::<Result<Vec<S>, _>>()?;
        pairs.spawn(hand_overs(stores, tune));
    }
    let mut all = Vec::new();
    for pair in pairs.join_all().await {
        all.extend(pair?);
    }
    all.sort_unstable();
    Ok(HandOvers(all))
}

/// Runs the hand-overs of one pair. The first store belongs to the owner, each other one to a new
/// worker.
async fn hand_overs<S: LeaseStore>(
    mut stores: Vec<S>,
    tune: fn(CoordinatorSettings) -> CoordinatorSettings,
) -> Result<Vec<Duration>, String> {
    let (stream, clock, chance) = (stream(2), Clock::machine(), Rng::of_system());
    let start = async |store: S, name: &str| {
        let (tally, settings) = (Arc::default(), tune(settings(name)));
        let (clock, chance) = (clock.clone(), chance.clone());
        let worker = Worker::start(store, &tally, &stream, settings, clock, chance).await?;
        Ok::<_, String>((worker, tally))
    };
    let owner = [start(stores.remove(0), "owner").await?.0];
    let mut took = Vec::new();
    for store in stores {
        wait(&owner, 2, Until::Owned, EVERY, WITHIN).await?;
        // The owner polls at its slow rate, and the request arrives at a random point between two
        // polls.
        clock.sleep(CALM_MS + chance.below(2_000)).await;
        let (mut newcomer, tally) = start(store, "newcomer").await?;
        let grip = newcomer.first_grip();
        let grip = tokio::time::timeout(WITHIN, grip).await.map_err(|_| "no hand-over")??;
        let asked = tally.named().ok_or("the newcomer got a lease that it had not asked for")?;
        took.push(grip - asked);
        newcomer.stop().await?;
    }
    Ok(took)
}
