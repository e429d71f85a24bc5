//! Scenario of the demo: reshards, a stop and a kill while records flow.

use super::DemoContext;
use super::workers::{DemoWorkers, TAKE_OVER_MS};
use crate::failure::CommandFailure;
use anabranch::clock::{Clock, Rng};
use anabranch_model::ids::ShardId;
use std::time::Duration;
use tokio::sync::mpsc;

/// Report on the scenario.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ScriptReport {
    /// Number of splits and merges.
    pub(super) reshards: usize,
    /// Name of the killed worker.
    pub(super) killed: Option<String>,
    /// Longest time from a stop to the next delivery by another worker, in milliseconds.
    pub(super) after_stop_ms: Option<u64>,
    /// Longest time from the kill to the next delivery by another worker, in milliseconds.
    pub(super) after_kill_ms: Option<u64>,
}

/// A step of the scenario.
enum ScriptStep {
    Split,
    Merge,
    StopOne,
    KillOne,
}

/// The steps, each with its start as a percentage of the total time.
const SCRIPT: [(u64, ScriptStep); 6] = [
    (12, ScriptStep::Split),
    (25, ScriptStep::StopOne),
    (40, ScriptStep::Merge),
    (52, ScriptStep::KillOne),
    (72, ScriptStep::Split),
    (85, ScriptStep::Merge),
];

/// Runs the scenario.
pub(super) async fn run(
    scene: &DemoContext<'_>,
    fleet: &mut DemoWorkers,
    say: mpsc::Sender<String>,
) -> Result<ScriptReport, CommandFailure> {
    let clock = Clock::machine();
    let chance = Rng::seeded(scene.options.seed);
    let began_ms = clock.now_ms();
    let mut told = ScriptReport::default();
    let tell = async |text: String| drop(say.send(text).await);
    for (percent, act) in &SCRIPT {
        clock.sleep_until(began_ms + scene.options.seconds * 10 * percent).await;
        match act {
            ScriptStep::Split => {
                tell(scene.stream.split(&chance).await?).await;
                told.reshards += 1;
            }
            ScriptStep::Merge => {
                tell(scene.stream.merge(&chance).await?).await;
                told.reshards += 1;
            }
            ScriptStep::StopOne => {
                let (name, shards) = pick_worker(fleet, &chance).await?;
                tell(format!("SIGTERM to {name}, which reads {} shards", shards.len())).await;
                let at_ms = clock.now_ms();
                fleet.stop(&name).await?;
                let next = fleet.start_worker()?;
                tell(format!("{name} stopped gracefully; {next} replaces it")).await;
                told.after_stop_ms = handed_over(scene, &clock, &shards, &name, at_ms).await;
            }
            ScriptStep::KillOne => {
                let (name, shards) = pick_worker(fleet, &chance).await?;
                tell(format!("SIGKILL to {name}, which reads {} shards", shards.len())).await;
                let at_ms = clock.now_ms();
                fleet.kill(&name).await?;
                told.after_kill_ms = handed_over(scene, &clock, &shards, &name, at_ms).await;
                told.killed = Some(name);
            }
        }
    }
    Ok(told)
}

/// Picks a worker that reads shards, and returns its shards.
async fn pick_worker(
    fleet: &mut DemoWorkers,
    chance: &Rng,
) -> Result<(String, Vec<ShardId>), CommandFailure> {
    let mut busy = Vec::new();
    for name in fleet.names() {
        let shards = fleet.shards_of(&name).await?;
        if !shards.is_empty() {
            busy.push((name, shards));
        }
    }
    let at = usize::try_from(chance.below(busy.len() as u64)).unwrap_or(0);
    let none = || CommandFailure::result("no worker reads a shard");
    if busy.is_empty() { Err(none()) } else { Ok(busy.swap_remove(at)) }
}

/// Returns the time until other workers delivered records of all these shards.
async fn handed_over(
    scene: &DemoContext<'_>,
    clock: &Clock,
    shards: &[ShardId],
    from: &str,
    at_ms: u64,
) -> Option<u64> {
    let mut longest = None;
    while clock.now_ms() < at_ms + TAKE_OVER_MS {
        let next = |shard| scene.deliveries.next_reader(shard, from, at_ms);
        let times: Vec<Option<u64>> = shards.iter().map(next).collect();
        longest = times.iter().flatten().max().map(|next_ms| next_ms - at_ms);
        if times.iter().all(Option::is_some) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    longest
}
