//! Poll interval: its cost on DynamoDB, and its effect on the duration of a hand-over.

use crate::WORKERS;
use crate::calls::Costs;
use crate::hand_over::{self, HandOvers};
use crate::idle::PerMinute;
use crate::stores::Stores;
use anabranch::lease::CoordinatorSettings;

/// Changes the default settings of a worker.
type SettingsChange = fn(CoordinatorSettings) -> CoordinatorSettings;

/// The compared poll intervals, in milliseconds.
const PAUSES: [(u64, SettingsChange); 3] = [
    (500, |settings| CoordinatorSettings { poll_interval: Some(500), ..settings }),
    (1_000, |settings| CoordinatorSettings { poll_interval: Some(1_000), ..settings }),
    (2_000, |settings| CoordinatorSettings { poll_interval: Some(2_000), ..settings }),
];

/// Hand-overs on DynamoDB, by poll interval in milliseconds.
pub(crate) type ByPause = Vec<(u64, HandOvers)>;

/// Measures hand-overs on every store, and on DynamoDB with every poll interval.
pub(crate) async fn hand_overs(stores: &Stores) -> Result<ByPause, String> {
    hand_over::head();
    let open = |application: &str| stores.sqlite(application);
    let seen = hand_over::run(open, |settings| settings, "default").await?;
    hand_over::row("SQLite", "default", &seen);
    if let Some(open) = stores.postgres() {
        let seen = hand_over::run(open, |settings| settings, "default").await?;
        hand_over::row("PostgreSQL", "default", &seen);
    }
    let mut by_pause = Vec::new();
    for (pause_ms, tune) in PAUSES {
        let Some(open) = stores.dynamodb() else { break };
        let seen = hand_over::run(open, tune, &pause_ms.to_string()).await?;
        hand_over::row("DynamoDB Local", &format!("{pause_ms} ms"), &seen);
        by_pause.push((pause_ms, seen));
    }
    Ok(by_pause)
}

/// Prints the capacity units that an idle fleet uses on DynamoDB, by poll interval.
pub(crate) fn units(idle: PerMinute, costs: Costs, seen: &ByPause) {
    println!("\nCapacity units per minute of that idle fleet on DynamoDB");
    println!(
        "{:<12}{:>12}{:>12}{:>13}{:>13}{:>14}",
        "look every", "RU, looks", "RU, lists", "RU in all", "WU, beats", "hand-over"
    );
    for (pause_ms, _) in PAUSES {
        let hand_overs = seen.iter().find(|(seen_ms, _)| *seen_ms == pause_ms);
        let took = hand_overs.map(|(_, hand_overs)| format!("{} ms", hand_overs.median_ms()));
        let looks = looks_per_minute(pause_ms) * costs.look.units;
        let lists = idle.lists * costs.list.units;
        println!(
            "{:<12}{looks:>12.0}{lists:>12.0}{:>13.0}{:>13.0}{:>14}",
            format!("{pause_ms} ms"),
            looks + lists,
            idle.beats * costs.beat.units,
            took.unwrap_or_else(|| "–".to_owned()),
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]
fn looks_per_minute(pause_ms: u64) -> f64 {
    WORKERS as f64 * 60_000.0 / pause_ms as f64
}
