//! One stream: what it is, its state at a moment, and the one `apply` of its changes.

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

/// A stream. Hot operations take its topology for reading, changes take it for writing.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The stream's number within the engine, never used twice.
    pub(crate) id: u64,
    /// The stream's name.
    pub(crate) name: String,
    /// The stream's ARN.
    pub(crate) arn: String,
    /// When it was created.
    pub(crate) created_ms: u64,
    /// Everything that a change can change.
    topology: RwLock<Topology>,
    /// Iterators of an earlier epoch have been made to expire.
    iterator_epoch: AtomicU64,
    /// The live subscription of each consumer and shard.
    pub(crate) live: Mutex<LiveMap>,
}

/// What a change can change.
#[derive(Debug)]
pub(crate) struct Topology {
    /// The stream's state.
    pub(crate) phase: Lifecycle,
    /// The capacity mode.
    pub(crate) mode: StreamMode,
    /// How long records are kept.
    pub(crate) retention_hours: u32,
    /// Records that arrived before this moment were past an earlier retention. A longer one does
    /// not bring them back.
    pub(crate) gone_before_ms: u64,
    /// All shards by index, closed ones too.
    pub(crate) shards: Vec<ShardState>,
    /// The open shards by the end of their range.
    open: Vec<(HashKey, u32)>,
    /// Tags of the stream.
    pub(crate) tags: BTreeMap<String, String>,
    /// Fan-out consumers by name.
    pub(crate) consumers: BTreeMap<String, Consumer>,
    /// The key of server-side encryption, if it is on.
    pub(crate) key_id: Option<String>,
    /// The record maximum in KiB.
    pub(crate) record_max_kib: u32,
    /// Shard-level metrics that are on.
    pub(crate) metrics: BTreeSet<String>,
    /// Where its shards count the memory of their records.
    memory: Arc<RecordMemory>,
}

/// A shard and what a change can change of it.
#[derive(Debug)]
pub(crate) struct ShardState {
    /// The shard.
    pub(crate) shard: Arc<Shard>,
    /// When it was closed.
    pub(crate) closed_ms: Option<u64>,
    /// Indexes of the shards that followed it.
    pub(crate) children: Vec<u32>,
}

impl ShardState {
    pub(crate) fn is_open(&self) -> bool {
        self.closed_ms.is_none()
    }
}

impl Stream {
    /// The stream that a creation makes.
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

    /// Makes every iterator that was given out so far expire.
    pub(crate) fn expire_iterators(&self) {
        self.iterator_epoch.fetch_add(1, Ordering::Relaxed);
    }
}

impl Topology {
    /// The stream's status at `now_ms`. `None` when it is gone.
    pub(crate) fn status(&self, now_ms: u64) -> Option<Status> {
        self.phase.status(now_ms)
    }

    /// Records that arrived before this moment are no longer there.
    pub(crate) fn horizon_ms(&self, now_ms: u64) -> u64 {
        let kept_ms = u64::from(self.retention_hours) * 3_600_000;
        now_ms.saturating_sub(kept_ms).max(self.gone_before_ms)
    }

    /// Bytes of one record, data and key, that the stream accepts.
    pub(crate) fn record_max_bytes(&self) -> usize {
        self.record_max_kib as usize * 1024
    }

    /// How records are encrypted at rest.
    pub(crate) fn encryption(&self) -> Encryption {
        if self.key_id.is_some() { Encryption::Kms } else { Encryption::None }
    }

    /// The consumers that are there at `now_ms`.
    pub(crate) fn present_consumers(
        &self,
        now_ms: u64,
    ) -> impl Iterator<Item = (&Consumer, Status)> {
        let consumers = self.consumers.values();
        consumers.filter_map(move |consumer| Some((consumer, consumer.phase.status(now_ms)?)))
    }

    /// The open shard whose range holds `key`.
    pub(crate) fn route(&self, key: HashKey) -> &Arc<Shard> {
        let at = self.open.partition_point(|(end, _)| *end < key);
        let (_, index) = self.open[at];
        &self.shards[index as usize].shard
    }

    /// Indexes of the open shards, by their ranges.
    pub(crate) fn open_shards(&self) -> impl ExactSizeIterator<Item = u32> {
        self.open.iter().map(|(_, index)| *index)
    }

    /// The shard of the given index, unless its last record is past retention.
    pub(crate) fn listed(&self, index: u32, now_ms: u64) -> Option<&ShardState> {
        let state = self.shards.get(index as usize)?;
        self.is_listed(state, now_ms).then_some(state)
    }

    /// A closed shard is listed until everything in it is past retention.
    pub(crate) fn is_listed(&self, state: &ShardState, now_ms: u64) -> bool {
        state.closed_ms.is_none_or(|closed| closed >= self.horizon_ms(now_ms))
    }

    /// Carries a change out. The caller has kept it in the journal.
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
