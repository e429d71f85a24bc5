//! The memory store behind a connection that can be cut, slowed down or made to lose replies.

use anabranch::lease::{LeaseStore, MemoryStore, StoreError, StorePoll};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, StoredRow,
    UnreadableRow, WorkerChange, WorkerId, WorkerRow, Write, WriteOutcome,
};
use anabranch_model::position::StartPosition;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Fault of the connection of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkFaults {
    Good,
    /// Every call is throttled.
    Throttled,
    /// Every call is lost: not applied and not answered.
    Dead,
    /// Writes are not applied and not answered. Reads pass.
    RequestsLost,
    /// Writes are applied, but the reply is lost.
    RepliesLost,
    /// Writes are applied at once, and the reply takes two seconds.
    RepliesSlow,
}

/// Selects the writes that a test wants to fail.
type WriteRule = Box<dyn Fn(&Write) -> bool + Send>;

#[derive(Clone)]
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    line: Arc<Mutex<LinkFaults>>,
    /// Writes that fail for good, as if their worker had crashed before them.
    fatal: Arc<Mutex<Option<WriteRule>>>,
    /// Shards whose rows are unreadable.
    unreadable: Arc<Mutex<BTreeSet<String>>>,
    /// Name of the worker whose row is unreadable.
    unreadable_worker: Arc<Mutex<Option<String>>>,
    /// Shards whose rows have no hash range, as old versions of KCL leave them.
    rangeless: Arc<Mutex<BTreeSet<String>>>,
    /// Reported state of KCL's table.
    pub(crate) survey: Arc<Mutex<KclProbe>>,
    /// Pause between two polls that the store suggests, in milliseconds.
    look_ms: u64,
    /// Duration of each call, in milliseconds.
    call_ms: u64,
    /// Delay with which lists show the changes of a version after a poll has shown it, in
    /// milliseconds, and the old rows.
    late_ms: u64,
    late: Arc<Mutex<StaleRows>>,
    /// Number of polls.
    looks: Arc<AtomicU64>,
    /// Number of reads of a single lease row, and of lists of a stream.
    reads: Arc<[AtomicU64; 2]>,
    /// Cost of reads on KCL's table, in thousandths of a read unit.
    milliunits: Arc<AtomicU64>,
    /// True while lists, and nothing else, are throttled.
    lists_throttled: Arc<AtomicBool>,
    /// Write capacity of the application's partition, if limited.
    capacity: Option<Capacity>,
    /// Start positions that a worker reported before it listed any lease.
    pub(crate) starts: Arc<Mutex<Vec<(StreamName, StartPosition)>>>,
}

/// Write units of one partition, as DynamoDB counts them on that of the application: one for a
/// heartbeat, two for the version's part of a transaction, none for a checkpoint.
#[derive(Clone)]
pub(crate) struct Capacity {
    units_per_second: f64,
    /// Units that are left, and when they were counted.
    left: Arc<Mutex<(f64, Instant)>>,
    /// Number of throttled writes.
    pub(crate) throttled: Arc<AtomicU64>,
}

impl Capacity {
    pub(crate) fn new(units_per_second: u32) -> Self {
        let units_per_second = f64::from(units_per_second);
        let left = Arc::new(Mutex::new((units_per_second, Instant::now())));
        Self { units_per_second, left, throttled: Arc::default() }
    }

    /// Takes the units of a write, if available. Returns true if they were.
    fn takes(&self, write: &Write) -> bool {
        let units = match write {
            Write::Lease { change: LeaseChange::Checkpoint { .. }, .. } => 0.0,
            Write::Worker { change: WorkerChange::Beat { .. }, .. } => 1.0,
            _ => 2.0,
        };
        let mut left = self.left.lock().unwrap();
        let gained = left.1.elapsed().as_secs_f64() * self.units_per_second;
        *left = ((left.0 + gained).min(self.units_per_second), Instant::now());
        let takes = left.0 >= units;
        if takes {
            left.0 -= units;
        } else {
            self.throttled.fetch_add(1, Ordering::Relaxed);
        }
        takes
    }
}

/// Rows before the last change of the version.
#[derive(Default)]
struct StaleRows {
    version: Option<u64>,
    rows: Vec<Lease>,
    until: Option<Instant>,
}

impl FaultyStore {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        let line = Arc::new(Mutex::new(LinkFaults::Good));
        let (fatal, survey) = (Arc::default(), Arc::default());
        let (looks, starts, unreadable) = (Arc::default(), Arc::default(), Arc::default());
        let (lists_throttled, rangeless) = (Arc::default(), Arc::default());
        let unreadable_worker = Arc::default();
        Self {
            inner,
            line,
            fatal,
            unreadable,
            unreadable_worker,
            rangeless,
            survey,
            look_ms: 500,
            call_ms: 1,
            looks,
            reads: Arc::default(),
            milliunits: Arc::default(),
            late_ms: 0,
            late: Arc::default(),
            lists_throttled,
            capacity: None,
            starts,
        }
    }

    /// Sets the duration of each call, in milliseconds.
    pub(crate) fn with_call_ms(self, call_ms: u64) -> Self {
        Self { call_ms, ..self }
    }

    /// Shares the write capacity with other workers.
    pub(crate) fn with_capacity(self, capacity: Capacity) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// Returns the number of reads of a single lease row, and of lists of a stream.
    pub(crate) fn reads(&self) -> [u64; 2] {
        [&self.reads[0], &self.reads[1]].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the cost of the worker's reads on KCL's table, in thousandths of a read unit: 90 for
    /// each row of a consistent scan, half of that for an eventually consistent one, and 1,000 for
    /// a single row.
    pub(crate) fn milliunits(&self) -> u64 {
        self.milliunits.load(Ordering::Relaxed)
    }

    fn scanned(&self, milliunits: u64) {
        let table = self.inner.snapshot();
        let rows = table.leases(&StreamName::from("s")).count() as u64;
        self.milliunits.fetch_add(rows * milliunits, Ordering::Relaxed);
    }

    /// Delays the changes of a version in lists by `late_ms` after a poll shows the version.
    pub(crate) fn with_late_lists(self, late_ms: u64) -> Self {
        Self { late_ms, ..self }
    }

    /// Sets the suggested pause between two polls, in milliseconds.
    pub(crate) fn with_look_ms(self, look_ms: u64) -> Self {
        Self { look_ms, ..self }
    }

    /// Returns how often the worker has polled.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Starts or stops throttling lists.
    pub(crate) fn throttle_lists(&self, throttled: bool) {
        self.lists_throttled.store(throttled, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, line: LinkFaults) {
        *self.line.lock().unwrap() = line;
    }

    /// Refuses writes for which `rule` holds with a permanent error.
    pub(crate) fn fail_if(&self, rule: impl Fn(&Write) -> bool + Send + 'static) {
        *self.fatal.lock().unwrap() = Some(Box::new(rule));
    }

    /// Makes the rows of these shards unreadable, and all others readable.
    pub(crate) fn make_unreadable(&self, shards: impl IntoIterator<Item = String>) {
        *self.unreadable.lock().unwrap() = shards.into_iter().collect();
    }

    /// Makes the row of the worker with this name unreadable.
    pub(crate) fn make_worker_unreadable(&self, name: Option<&str>) {
        *self.unreadable_worker.lock().unwrap() = name.map(str::to_owned);
    }

    fn is_unreadable(&self, shard: &ShardId) -> bool {
        self.unreadable.lock().unwrap().contains(shard.as_str())
    }

    fn readable(&self, key: &LeaseKey) -> Result<(), StoreError> {
        if !self.is_unreadable(&key.shard) {
            return Ok(());
        }
        let (store, row) = ("memory".into(), key.to_string());
        Err(StoreError::UnreadableRow { store, row, detail: "by the test".into() })
    }

    /// Hides the hash ranges in the rows of these shards until one is stored.
    pub(crate) fn forget_ranges(&self, shards: impl IntoIterator<Item = String>) {
        self.rangeless.lock().unwrap().extend(shards);
    }

    /// Returns a row as this store shows it.
    fn shown(&self, mut lease: Lease) -> Lease {
        if self.rangeless.lock().unwrap().contains(lease.key.shard.as_str()) {
            lease.range = None;
        }
        lease
    }

    fn stored(&self, stored: StoredRow) -> StoredRow {
        match stored {
            StoredRow::Lease(lease) => StoredRow::Lease(Box::new(self.shown(*lease))),
            other => other,
        }
    }

    async fn through(&self) -> Result<LinkFaults, StoreError> {
        let line = *self.line.lock().unwrap();
        // Even a good connection takes a moment.
        tokio::time::sleep(Duration::from_millis(self.call_ms)).await;
        match line {
            LinkFaults::Good
            | LinkFaults::RequestsLost
            | LinkFaults::RepliesLost
            | LinkFaults::RepliesSlow => Ok(line),
            LinkFaults::Throttled => {
                Err(StoreError::Throttled { store: "memory".into(), detail: "slow down".into() })
            }
            LinkFaults::Dead => std::future::pending().await,
        }
    }
}

impl LeaseStore for FaultyStore {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    fn poll_interval(&self) -> u64 {
        self.look_ms
    }

    fn note_start(&self, stream: &StreamName, start: StartPosition) {
        self.starts.lock().unwrap().push((stream.clone(), start));
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.through().await?;
        self.inner.prepare().await
    }

    async fn probe(&self) -> Result<KclProbe, StoreError> {
        self.through().await?;
        self.scanned(90);
        Ok(self.survey.lock().unwrap().clone())
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.through().await?;
        self.inner.application().await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.through().await?;
        let mut look = self.inner.poll().await?;
        if let Some(name) = &*self.unreadable_worker.lock().unwrap() {
            let is_it = |worker: &mut WorkerRow| worker.id.as_str().starts_with(name.as_str());
            look.unreadable.extend(
                look.workers
                    .extract_if(.., is_it)
                    .map(|worker| UnreadableRow { key: worker.id, why: "by the test".into() }),
            );
        }
        let mut late = self.late.lock().unwrap();
        if late.version != look.version {
            late.version = look.version;
            late.until = Some(Instant::now() + Duration::from_millis(self.late_ms));
        }
        Ok(look)
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        let told = self.starts.lock().unwrap().iter().any(|(name, _)| name == stream);
        assert!(told, "the leases of {stream} are listed before the store knows its start");
        self.reads[1].fetch_add(1, Ordering::Relaxed);
        self.through().await?;
        self.scanned(90);
        if self.lists_throttled.load(Ordering::Relaxed) {
            let (store, detail) = ("memory".into(), "slow down".into());
            return Err(StoreError::Throttled { store, detail });
        }
        let rows = self.inner.list(stream).await?.map(|row| self.shown(row)).rows;
        let mut late = self.late.lock().unwrap();
        if late.until.is_none_or(|until| Instant::now() >= until) || late.rows.is_empty() {
            late.rows = rows;
        }
        let rows: Vec<_> =
            late.rows.iter().filter(|row| !self.is_unreadable(&row.key.shard)).cloned().collect();
        let bad = self.unreadable.lock().unwrap();
        let bad = bad.iter().map(|shard| (shard.as_str().into(), "by the test".to_owned()));
        let unreadable = bad.map(|(key, why)| UnreadableRow { key, why }).collect();
        Ok(LeaseListing { rows, unreadable })
    }

    async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        let before = self.milliunits();
        let mut rows = BTreeMap::new();
        for stream in streams {
            rows.insert(stream.clone(), self.list(stream).await?);
        }
        // One scan for all streams, at half the cost.
        self.milliunits.store(before, Ordering::Relaxed);
        self.scanned(45);
        Ok(rows)
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.reads[0].fetch_add(1, Ordering::Relaxed);
        self.milliunits.fetch_add(1_000, Ordering::Relaxed);
        self.through().await?;
        self.readable(key)?;
        Ok(self.inner.get(key).await?.map(|row| self.shown(row)))
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.through().await?;
        self.inner.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let line = self.through().await?;
        if self.fatal.lock().unwrap().as_ref().is_some_and(|rule| rule(write)) {
            return Err(StoreError::Denied {
                store: "memory".into(),
                detail: "by the test".into(),
            });
        }
        if self.capacity.as_ref().is_some_and(|capacity| !capacity.takes(write)) {
            let (store, detail) = ("memory".into(), "the partition is full".into());
            return Err(StoreError::Throttled { store, detail });
        }
        if line == LinkFaults::RequestsLost {
            return Ok(WriteOutcome::Unknown);
        }
        if let Write::Lease { key, .. } = write {
            self.readable(key)?;
        }
        if let Write::Lease { key, change: LeaseChange::NoteRange(_), .. } = write {
            self.rangeless.lock().unwrap().remove(key.shard.as_str());
        }
        let outcome = match self.inner.write(write).await? {
            WriteOutcome::Done(stored) => WriteOutcome::Done(self.stored(stored)),
            WriteOutcome::Refused { why, now } => {
                WriteOutcome::Refused { why, now: now.map(|stored| self.stored(stored)) }
            }
            WriteOutcome::Unknown => WriteOutcome::Unknown,
        };
        if line == LinkFaults::RepliesSlow {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        Ok(if line == LinkFaults::RepliesLost { WriteOutcome::Unknown } else { outcome })
    }

    async fn read_back(&self, write: &Write) -> Result<StoredRow, StoreError> {
        self.through().await?;
        Ok(self.stored(self.inner.read_back(write).await?))
    }
}
