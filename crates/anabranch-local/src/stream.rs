//! A stream: its fixed properties, its topology, and the `apply` of its changes.

use crate::change::{Change, ChangeKind, Creation, StreamMode};
use crate::consumer::Consumer;
use crate::encryption::Encryption;
use crate::lifecycle::{Lifecycle, Status};
use crate::lock;
use crate::memory::RecordMemory;
use crate::shard::Shard;
use crate::subscription::LiveMap;
use anabranch_model::hash::HashKey;
use anabranch_model::limits;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A stream. Hot operations lock its topology for reading, changes lock it for writing.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The stream's number within the engine, never reused.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) arn: String,
    /// Time of creation, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// Everything that a change can modify.
    topology: RwLock<Topology>,
    /// Number of times that iterators were expired. Iterators of a lower epoch have expired.
    iterator_epoch: AtomicU64,
    /// The live subscription of each consumer and shard.
    pub(crate) live: Mutex<LiveMap>,
}

/// The part of a stream that changes can modify.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) phase: Lifecycle,
    pub(crate) mode: StreamMode,
    /// Retention period, in hours.
    pub(crate) retention_hours: u32,
    /// Records that arrived before this time, in milliseconds since 1970, were past a previous
    /// retention period. A longer period does not bring them back.
    pub(crate) gone_before_ms: u64,
    /// All shards by index, including closed ones.
    pub(crate) shards: Vec<ShardState>,
    /// The end of the hash range and the index of each open shard, ordered by end.
    open: Vec<(HashKey, u32)>,
    pub(crate) tags: BTreeMap<String, String>,
    /// Fan-out consumers by name.
    pub(crate) consumers: BTreeMap<String, Consumer>,
    /// The key of server-side encryption, if it is on.
    pub(crate) key_id: Option<String>,
    /// The maximum record size in KiB.
    pub(crate) record_max_kib: u32,
    /// Shard-level metrics that are on.
    pub(crate) metrics: BTreeSet<String>,
    /// Counts the memory of the shards' records.
    memory: Arc<RecordMemory>,
}

/// A shard and the part of it that changes can modify.
#[derive(Debug)]
pub(crate) struct ShardState {
    pub(crate) shard: Arc<Shard>,
    /// Time of closing, in milliseconds since 1970; `None` while open.
    pub(crate) closed_ms: Option<u64>,
    /// Indexes of its children.
    pub(crate) children: Vec<u32>,
}

impl ShardState {
    pub(crate) fn is_open(&self) -> bool {
        self.closed_ms.is_none()
    }
}

impl Stream {
    /// Creates a stream from a creation.
    pub(crate) fn create(
        name: &str,
        arn: String,
        at_ms: u64,
        creation: &Creation,
        memory: Arc<RecordMemory>,
    ) -> Self {
        let mut topology = Topology {
            phase: Lifecycle::Creating { until_ms: creation.until_ms },
            mode: creation.mode,
            retention_hours: limits::RETENTION_MIN_HOURS,
            gone_before_ms: 0,
            shards: Vec::new(),
            open: Vec::new(),
            tags: creation.tags.clone(),
            consumers: BTreeMap::new(),
            key_id: None,
            record_max_kib: creation.record_max_kib,
            metrics: BTreeSet::new(),
            memory,
        };
        topology.reshard(&creation.shards, &[], at_ms);
        Self {
            id: creation.id,
            name: name.to_owned(),
            arn,
            created_ms: at_ms,
            topology: RwLock::new(topology),
            iterator_epoch: AtomicU64::new(0),
            live: Mutex::default(),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Topology> {
        lock::read(&self.topology)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Topology> {
        lock::write(&self.topology)
    }

    pub(crate) fn iterator_epoch(&self) -> u64 {
        self.iterator_epoch.load(Ordering::Relaxed)
    }

    /// Expires every iterator issued so far.
    pub(crate) fn expire_iterators(&self) {
        self.iterator_epoch.fetch_add(1, Ordering::Relaxed);
    }
}

impl Topology {
    /// Returns the stream's status at `now_ms`, or `None` once it no longer exists.
    pub(crate) fn status(&self, now_ms: u64) -> Option<Status> {
        self.phase.status(now_ms)
    }

    /// Returns the trim horizon at `now_ms`: records that arrived earlier are unreadable.
    pub(crate) fn horizon_ms(&self, now_ms: u64) -> u64 {
        let kept_ms = u64::from(self.retention_hours) * 3_600_000;
        now_ms.saturating_sub(kept_ms).max(self.gone_before_ms)
    }

    /// Returns the maximum size of a record, data and key together, in bytes.
    pub(crate) fn record_max_bytes(&self) -> usize {
        self.record_max_kib as usize * 1024
    }

    /// Returns the type of encryption at rest.
    pub(crate) fn encryption(&self) -> Encryption {
        if self.key_id.is_some() { Encryption::Kms } else { Encryption::None }
    }

    /// Returns the consumers that exist at `now_ms`, with their status.
    pub(crate) fn present_consumers(
        &self,
        now_ms: u64,
    ) -> impl Iterator<Item = (&Consumer, Status)> {
        let consumers = self.consumers.values();
        consumers.filter_map(move |consumer| Some((consumer, consumer.phase.status(now_ms)?)))
    }

    /// Returns the open shard whose range contains `key`.
    pub(crate) fn route(&self, key: HashKey) -> &Arc<Shard> {
        let at = self.open.partition_point(|(end, _)| *end < key);
        let (_, index) = self.open[at];
        &self.shards[index as usize].shard
    }

    /// Returns the indexes of the open shards, in the order of their ranges.
    pub(crate) fn open_shards(&self) -> impl ExactSizeIterator<Item = u32> {
        self.open.iter().map(|(_, index)| *index)
    }

    /// Returns the shard of the given index, unless it was closed before the trim horizon.
    pub(crate) fn listed(&self, index: u32, now_ms: u64) -> Option<&ShardState> {
        let state = self.shards.get(index as usize)?;
        self.is_listed(state, now_ms).then_some(state)
    }

    /// Returns true if lists include the shard: it is open, or was not closed before the trim
    /// horizon.
    pub(crate) fn is_listed(&self, state: &ShardState, now_ms: u64) -> bool {
        state.closed_ms.is_none_or(|closed| closed >= self.horizon_ms(now_ms))
    }

    /// Applies a change, which the caller has already recorded in the journal.
    pub(crate) fn apply(&mut self, change: &Change) {
        let updating = |until_ms: u64| Lifecycle::Updating { until_ms };
        match &change.what {
            ChangeKind::Create(_) => {}
            ChangeKind::Delete { until_ms } => {
                self.phase = Lifecycle::Deleting { until_ms: *until_ms };
                self.wake_all();
            }
            ChangeKind::Reshard(reshard) => {
                self.phase = updating(reshard.until_ms);
                self.reshard(&reshard.opens, &reshard.closes, change.at_ms);
            }
            ChangeKind::Retain { hours } => {
                self.gone_before_ms = self.horizon_ms(change.at_ms);
                self.retention_hours = *hours;
            }
            ChangeKind::Mode { mode, until_ms } => {
                self.mode = *mode;
                self.phase = updating(*until_ms);
            }
            ChangeKind::Tag { tags } => self.tags.extend(tags.clone()),
            ChangeKind::Untag { keys } => self.tags.retain(|key, _| !keys.contains(key)),
            ChangeKind::Encrypt { key_id, until_ms } => {
                self.key_id.clone_from(key_id);
                self.phase = updating(*until_ms);
            }
            ChangeKind::RecordMax { kib, until_ms } => {
                self.record_max_kib = *kib;
                self.phase = updating(*until_ms);
            }
            ChangeKind::Monitor { metrics } => self.metrics.clone_from(metrics),
            ChangeKind::Register { name, arn, tags, until_ms } => {
                let phase = Lifecycle::Creating { until_ms: *until_ms };
                let consumer = Consumer::new(name, arn, change.at_ms, phase, tags);
                self.consumers.insert(name.clone(), consumer);
            }
            ChangeKind::Deregister { name, until_ms } => {
                self.change_consumer(name, |c| {
                    c.phase = Lifecycle::Deleting { until_ms: *until_ms }
                });
                self.wake_all();
            }
            ChangeKind::TagConsumer { name, tags } => {
                self.change_consumer(name, |c| c.tags.extend(tags.clone()));
            }
            ChangeKind::UntagConsumer { name, keys } => {
                self.change_consumer(name, |c| c.tags.retain(|key, _| !keys.contains(key)));
            }
        }
    }

    fn change_consumer(&mut self, name: &str, change: impl FnOnce(&mut Consumer)) {
        if let Some(consumer) = self.consumers.get_mut(name) {
            change(consumer);
        }
    }

    fn reshard(&mut self, opens: &[crate::change::NewShard], closes: &[u32], at_ms: u64) {
        for new in opens {
            let index = u32::try_from(self.shards.len()).expect("far fewer than 2^32 shards");
            for parent in &new.parents {
                self.shards[*parent as usize].children.push(index);
            }
            self.shards.push(ShardState {
                shard: Arc::new(Shard::new(index, new, at_ms, Arc::clone(&self.memory))),
                closed_ms: None,
                children: Vec::new(),
            });
        }
        for index in closes {
            let state = &mut self.shards[*index as usize];
            state.closed_ms = Some(at_ms);
            state.shard.news.notify_waiters();
        }
        let open = self.shards.iter().filter(|state| state.is_open());
        self.open = open.map(|state| (state.shard.range.end(), state.shard.index)).collect();
        self.open.sort_unstable();
    }

    /// Wakes every subscription of the stream.
    pub(crate) fn wake_all(&self) {
        self.shards.iter().for_each(|state| state.shard.news.notify_waiters());
    }
}
