//! Tree view of the shards: each shard below its parent.

use super::ShardsView;
use crate::line::short;
use crate::table::Column;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::Checkpoint;
use anabranch_model::lineage::Shard;
use anabranch_model::position::Position;
use std::collections::BTreeSet;

/// Digits of a sequence number that distinguish it from its neighbours.
const TOLD_DIGITS: usize = 10;

/// The columns. The reason for waiting is more important than the owner and the checkpoint.
const COLUMNS: [Column; 7] = [
    Column::kept("shard"),
    Column::dropped("state", 1),
    Column::dropped("keys", 0),
    Column::cut("owner", 3, 10),
    Column::dropped("checkpoint", 2),
    Column::kept("lag"),
    Column::cut("", 4, 12),
];

/// Returns the columns of the table.
pub(super) fn columns(picture: &ShardsView) -> &'static [Column] {
    if picture.rows.is_some() { &COLUMNS } else { &COLUMNS[..3] }
}

/// Returns the rows of the table.
pub(super) fn rows(picture: &ShardsView) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut drawn = BTreeSet::new();
    let roots = picture
        .lineage
        .shards()
        .filter(|shard| picture.lineage.listed_parents(&shard.id).next().is_none());
    // An explicit stack: a lineage can be as deep as it has shards.
    let mut next: Vec<(String, String, &Shard)> =
        roots.map(|shard| (String::new(), String::new(), shard)).collect();
    next.reverse();
    while let Some((branch, stem, shard)) = next.pop() {
        if !drawn.insert(&shard.id) {
            // The child of a merge has two parents, and is shown under the first.
            rows.push(vec![format!("{branch}{} (above)", short(&shard.id))]);
            continue;
        }
        rows.push(row(picture, &branch, shard));
        let children: Vec<&Shard> = children(picture, &shard.id);
        for (at, child) in children.iter().enumerate().rev() {
            let last = at + 1 == children.len();
            let (turn, line) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            next.push((format!("{stem}{turn}"), format!("{stem}{line}"), child));
        }
    }
    rows
}

fn children<'a>(picture: &'a ShardsView, id: &ShardId) -> Vec<&'a Shard> {
    picture.lineage.children(id).iter().filter_map(|id| picture.lineage.get(id)).collect()
}

fn row(picture: &ShardsView, branch: &str, shard: &Shard) -> Vec<String> {
    let state = if shard.is_open() { "open" } else { "closed" };
    let mut row =
        vec![format!("{branch}{}", shard.id), state.to_owned(), format!("{:.1} %", share(shard))];
    let Some(standing) = picture.standing(shard) else { return row };
    let lease = picture.rows.as_ref().and_then(|rows| rows.get(&shard.id));
    let owner = lease.and_then(|lease| lease.owner.as_ref());
    row.push(owner.map_or_else(|| "-".to_owned(), |owner| owner_text(owner.as_str())));
    row.push(lease.map_or_else(|| "-".to_owned(), |lease| checkpoint_text(&lease.checkpoint)));
    let lag = picture.lags.get(&shard.id);
    row.push(lag.map_or_else(|| "-".to_owned(), ToString::to_string));
    row.push(standing.to_string());
    row
}

/// Returns a worker id without its random digits.
fn owner_text(owner: &str) -> String {
    owner.split('/').next().unwrap_or(owner).to_owned()
}

/// Formats a checkpoint with the distinguishing digits of its sequence number.
pub(crate) fn checkpoint_text(checkpoint: &Checkpoint) -> String {
    let lanes = checkpoint.lanes().len();
    let text = match checkpoint.lowest() {
        Position::At { sequence, sub } => {
            let digits = sequence.to_string();
            // The local stream counts in the middle digits, followed by zeros.
            let digits = digits.trim_end_matches('0');
            let told = &digits[digits.len().saturating_sub(TOLD_DIGITS)..];
            let mark = if digits.len() > TOLD_DIGITS { "…" } else { "" };
            if sub == 0 { format!("{mark}{told}") } else { format!("{mark}{told}/{sub}") }
        }
        Position::AtTimestamp(ms) => format!("at {}", crate::time_spec::text(ms)),
        other => other.to_string(),
    };
    if lanes > 1 { format!("{text} ({lanes} lanes)") } else { text }
}

/// Returns a shard's share of the hash range, in percent.
pub(super) fn share(shard: &Shard) -> f64 {
    let keys = shard.range.end().0 - shard.range.start().0;
    // Thousandths are precise enough for display.
    let thousandths = (keys / (u128::MAX / 2_000)).div_ceil(2);
    f64::from(u32::try_from(thousandths).unwrap_or(1_000)) / 10.0
}
