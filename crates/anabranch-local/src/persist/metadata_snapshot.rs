//! A snapshot: all metadata at one time, as the shortest list of changes that leads to it.
//!
//! Because a snapshot consists of changes, it is read by the same `apply` as every change. State
//! that changes cannot express is kept beside them.

use crate::change::{Change, ChangeKind, Creation, NewShard, Reshard};
use crate::lifecycle::Lifecycle;
use crate::stream::{ShardState, Stream, Topology};
use anabranch_model::limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All metadata of an engine.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MetadataSnapshot {
    /// The number of the next stream. Numbers of deleted streams are not reused.
    pub(super) next_stream_id: u64,
    /// The changes that lead to the state of the streams.
    pub(super) changes: Vec<Change>,
    /// The next counter of each shard, by stream number.
    pub(super) counters: BTreeMap<u64, Vec<u64>>,
}

impl MetadataSnapshot {
    /// Captures the state of the given streams, except those that no longer exist at `now_ms`.
    pub(super) fn of<'a>(
        next_stream_id: u64,
        now_ms: u64,
        streams: impl IntoIterator<Item = (&'a Stream, &'a Topology)>,
    ) -> Self {
        let mut image = Self { next_stream_id, ..Self::default() };
        for (stream, topology) in streams {
            if topology.status(now_ms).is_some() {
                image.changes.extend(changes_of(stream, topology, now_ms));
                let next_counter = |state: &ShardState| state.shard.lock().log.next_counter();
                let counters = topology.shards.iter().map(next_counter).collect();
                image.counters.insert(stream.id, counters);
            }
        }
        image
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are always JSON")
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes)
            .map_err(|problem| format!("cannot parse the snapshot: {problem}"))
    }
}

/// Returns the changes that lead to the state of one stream.
fn changes_of(stream: &Stream, topology: &Topology, now_ms: u64) -> Vec<Change> {
    let change = |at_ms: u64, what: ChangeKind| Change { stream: stream.name.clone(), at_ms, what };
    let (first, later) = generations(topology);
    let created_until = match topology.phase {
        Lifecycle::Creating { until_ms } => until_ms,
        Lifecycle::Updating { .. } | Lifecycle::Deleting { .. } => 0,
    };
    let mut changes = vec![change(
        stream.created_ms,
        ChangeKind::Create(Creation {
            id: stream.id,
            mode: topology.mode,
            shards: first,
            tags: topology.tags.clone(),
            record_max_kib: topology.record_max_kib,
            until_ms: created_until,
        }),
    )];
    changes.extend(
        later.into_iter().map(|(at_ms, reshard)| change(at_ms, ChangeKind::Reshard(reshard))),
    );
    let then = stream.created_ms;
    // At this time a new stream's retention reaches back exactly to `gone_before_ms`.
    let retained_ms = topology.gone_before_ms + u64::from(limits::RETENTION_MIN_HOURS) * 3_600_000;
    changes.push(change(retained_ms, ChangeKind::Retain { hours: topology.retention_hours }));
    if !topology.metrics.is_empty() {
        changes.push(change(then, ChangeKind::Monitor { metrics: topology.metrics.clone() }));
    }
    // Each of these changes sets the phase, so the one with the right phase comes last.
    match topology.phase {
        Lifecycle::Creating { .. } => {}
        Lifecycle::Updating { until_ms } => {
            let key_id = topology.key_id.clone();
            changes.push(change(then, ChangeKind::Encrypt { key_id, until_ms }));
        }
        Lifecycle::Deleting { until_ms } => {
            let key_id = topology.key_id.clone();
            changes.push(change(then, ChangeKind::Encrypt { key_id, until_ms: 0 }));
            changes.push(change(then, ChangeKind::Delete { until_ms }));
        }
    }
    for consumer in topology.consumers.values().filter(|c| c.phase.status(now_ms).is_some()) {
        let (until_ms, gone_ms) = match consumer.phase {
            Lifecycle::Creating { until_ms } | Lifecycle::Updating { until_ms } => (until_ms, None),
            Lifecycle::Deleting { until_ms } => (0, Some(until_ms)),
        };
        let (name, arn) = (consumer.name.clone(), consumer.arn.clone());
        let tags = consumer.tags.clone();
        let register = ChangeKind::Register { name: name.clone(), arn, tags, until_ms };
        changes.push(change(consumer.created_ms, register));
        changes.extend(
            gone_ms.map(|until_ms| change(then, ChangeKind::Deregister { name, until_ms })),
        );
    }
    changes
}

/// Returns the initial shards of a stream, and the reshards after them: first all that open shards,
/// in the order of indexes, then all that close them.
fn generations(topology: &Topology) -> (Vec<NewShard>, Vec<(u64, Reshard)>) {
    let new = |state: &ShardState| NewShard {
        range: state.shard.range,
        parents: state.shard.parents.clone(),
        high: state.shard.stamp.high,
    };
    let is_first = |state: &&ShardState| state.shard.parents.is_empty();
    let first: Vec<_> = topology.shards.iter().take_while(is_first).map(new).collect();
    let later = topology.shards[first.len()..].chunk_by(|a, b| a.shard.born_ms == b.shard.born_ms);
    let opens = later.map(|born| {
        let opens = born.iter().map(new).collect();
        (born[0].shard.born_ms, Reshard { opens, closes: Vec::new(), until_ms: 0 })
    });
    let mut by_time: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for state in &topology.shards {
        if let Some(closed_ms) = state.closed_ms {
            by_time.entry(closed_ms).or_default().push(state.shard.index);
        }
    }
    let closes = by_time
        .into_iter()
        .map(|(at_ms, closes)| (at_ms, Reshard { opens: Vec::new(), closes, until_ms: 0 }));
    let reshards = opens.chain(closes).collect();
    (first, reshards)
}
