//! The engine: all streams, and the single path on which they change.
//!
//! ```text
//! request ── plan ──> Change ── journal ──> apply ──> visible       (metadata)
//! records ── route ─> shard lock { number, journal, store } ─ wake  (data)
//! ```
//!
//! Everything here is synchronous and bounded, and no lock is held across an await. Locks are taken
//! in the order streams, topology, shard.

use crate::arn::{self, AccountRegion};
use crate::change::{Change, ChangeKind, Creation};
use crate::clock::{self, Clock};
use crate::error::ApiError;
use crate::fault::Faults;
use crate::journal::{Journal, JournalAppend};
use crate::lifecycle::Status;
use crate::lock;
use crate::memory::RecordMemory;
use crate::options::EngineOptions;
use crate::stream::{Stream, Topology};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockWriteGuard};

/// A local Kinesis: streams in memory, behind the service's own operations.
pub struct Engine {
    options: EngineOptions,
    clock: Clock,
    /// Identifies this run. Iterators of another run count as expired.
    run_id: u64,
    /// Memory used by records.
    memory: Arc<RecordMemory>,
    /// The account and region in ARNs and messages.
    pub(crate) home: AccountRegion,
    /// All streams by name. Changes hold the write lock, so that a plan sees a consistent account.
    streams: RwLock<StreamsByName>,
    next_stream_id: AtomicU64,
    /// True while shards refuse requests above the service's rates.
    limits_enforced: AtomicBool,
    /// Faults to inject on request.
    faults: Faults,
    /// Keeps changes and records, if the engine is durable.
    journal: OnceLock<Arc<dyn Journal>>,
}

type StreamsByName = BTreeMap<String, Arc<Stream>>;

/// A request's reference to a stream: by name, by ARN, or by both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamRef<'a> {
    /// The stream's name.
    pub name: Option<Cow<'a, str>>,
    /// The stream's ARN.
    pub arn: Option<Cow<'a, str>>,
}

impl<'a> StreamRef<'a> {
    /// Refers to a stream by name.
    pub fn named(name: &'a str) -> Self {
        Self { name: Some(Cow::Borrowed(name)), arn: None }
    }
}

/// The input of a plan: one stream, and the account around it.
pub(crate) struct EngineView<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) topology: &'a Topology,
    pub(crate) status: Status,
    pub(crate) now_ms: u64,
    pub(crate) account_shards: usize,
}

impl Engine {
    /// Creates an engine without streams.
    pub fn new(options: EngineOptions, clock: Clock) -> Self {
        Self {
            home: AccountRegion {
                account: options.account_id.clone(),
                region: options.region.clone(),
            },
            limits_enforced: AtomicBool::new(options.enforce_limits),
            faults: Faults::new(options.seed),
            memory: Arc::new(RecordMemory::up_to(options.max_memory_bytes)),
            options,
            clock,
            run_id: clock::run_id(),
            streams: RwLock::default(),
            next_stream_id: AtomicU64::new(1),
            journal: OnceLock::new(),
        }
    }

    /// Returns the engine's options.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Returns the engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the bytes of memory used by the records of all streams, including index and unused
    /// capacity.
    pub fn memory_bytes(&self) -> usize {
        self.memory.used()
    }

    pub(crate) fn memory(&self) -> &Arc<RecordMemory> {
        &self.memory
    }

    pub(crate) fn run_id(&self) -> u64 {
        self.run_id
    }

    /// Frees the memory of records past retention and of deleted streams. A server calls it
    /// periodically by the engine's clock; puts and reads free only their own shard.
    pub fn free_memory(&self) {
        let now_ms = self.now_ms();
        drop_deleted(&mut lock::write(&self.streams), now_ms);
        for (stream, _) in self.present_streams() {
            let topology = stream.read();
            let horizon_ms = topology.horizon_ms(now_ms);
            for state in &topology.shards {
                state.shard.lock().log.trim(horizon_ms);
            }
        }
    }

    /// Returns the faults to inject on request.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns true if shards refuse requests above the service's rates.
    pub fn limits_enforced(&self) -> bool {
        self.limits_enforced.load(Ordering::Relaxed)
    }

    /// Turns the service's rates on or off. A subscription keeps the setting that it began with.
    pub fn enforce_limits(&self, enforce: bool) {
        self.limits_enforced.store(enforce, Ordering::Relaxed);
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Sends every later change and record to `journal` first. Called once, after a replay.
    pub fn set_journal(&self, journal: Arc<dyn Journal>) {
        let first = self.journal.set(journal).is_ok();
        debug_assert!(first, "an engine has one journal");
    }

    /// Waits until everything done so far is as durable as the journal's policy requires. Also runs
    /// the maintenance of the journal that is due.
    pub async fn durable(&self) -> Result<(), ApiError> {
        match self.journal.get() {
            None => Ok(()),
            Some(journal) => {
                journal.run_maintenance(self);
                journal.durable().await.map_err(|error| ApiError::not_kept(&error))
            }
        }
    }

    pub(crate) fn journal_append(&self, append: &JournalAppend<'_>) -> Result<(), ApiError> {
        match self.journal.get() {
            None => Ok(()),
            Some(journal) => journal.append(append).map_err(|error| ApiError::not_kept(&error)),
        }
    }

    fn journal_change(&self, change: &Change) -> Result<(), ApiError> {
        match self.journal.get() {
            None => Ok(()),
            Some(journal) => journal.change(change).map_err(|error| ApiError::not_kept(&error)),
        }
    }

    /// Returns the existing streams, by name.
    pub(crate) fn present_streams(&self) -> Vec<(Arc<Stream>, Status)> {
        let now = self.now_ms();
        let streams = lock::read(&self.streams);
        let present = streams.values().filter_map(|stream| {
            let status = stream.read().status(now)?;
            Some((Arc::clone(stream), status))
        });
        present.collect()
    }

    /// Returns the stream of the given name, if it exists.
    pub(crate) fn find_by_name(&self, name: &str) -> Result<Arc<Stream>, ApiError> {
        let stream = lock::read(&self.streams).get(name).cloned();
        let now = self.now_ms();
        stream
            .filter(|stream| stream.read().status(now).is_some())
            .ok_or_else(|| self.stream_not_found(name))
    }

    /// Returns the stream that a request refers to.
    pub(crate) fn find(&self, stream: &StreamRef<'_>) -> Result<Arc<Stream>, ApiError> {
        self.find_by_name(&self.resolve(stream)?)
    }

    /// Returns the name of the stream that a request refers to. Checks the reference, but does not
    /// look the stream up.
    pub(crate) fn resolve<'a>(&self, stream: &'a StreamRef<'_>) -> Result<Cow<'a, str>, ApiError> {
        crate::constraint::stream_ref(stream)?;
        let by_arn = match &stream.arn {
            None => None,
            Some(text) => {
                let parsed = arn::parse(text).ok_or_else(|| crate::constraint::bad_arn(text))?;
                if parsed.account != self.home.account || parsed.region != self.home.region {
                    let (name, account) = (parsed.stream, parsed.account);
                    let text = format!("Stream {name} under account {account} not found.");
                    return Err(ApiError::not_found(text));
                }
                Some(parsed.stream)
            }
        };
        match (&stream.name, by_arn) {
            (Some(name), Some(other)) if name != other => Err(ApiError::invalid(format!(
                "StreamName {name} and StreamARN {} do not name the same stream.",
                stream.arn.as_deref().unwrap_or_default()
            ))),
            (Some(name), _) => Ok(Cow::Borrowed(name.as_ref())),
            (None, Some(name)) => Ok(Cow::Borrowed(name)),
            (None, None) => {
                Err(ApiError::invalid("Either StreamName or StreamARN must be provided."))
            }
        }
    }

    pub(crate) fn stream_not_found(&self, name: &str) -> ApiError {
        let account = &self.home.account;
        ApiError::not_found(format!("Stream {name} under account {account} not found."))
    }

    /// Changes one stream. `plan` inspects it and returns the change, or `None` for no change.
    pub(crate) fn change_stream(
        &self,
        name: &str,
        plan: impl FnOnce(&EngineView<'_>) -> Result<Option<ChangeKind>, ApiError>,
    ) -> Result<(), ApiError> {
        let mut streams = lock::write(&self.streams);
        let now_ms = self.now_ms();
        drop_deleted(&mut streams, now_ms);
        let account_shards = count_open(&streams, now_ms);
        let stream = streams.get(name).ok_or_else(|| self.stream_not_found(name))?;
        let mut topology = stream.write();
        let status = topology.status(now_ms).ok_or_else(|| self.stream_not_found(name))?;
        let scene = EngineView { stream, topology: &topology, status, now_ms, account_shards };
        let Some(what) = plan(&scene)? else { return Ok(()) };
        let change = Change { stream: name.to_owned(), at_ms: now_ms, what };
        self.journal_change(&change)?;
        topology.apply(&change);
        Ok(())
    }

    /// Creates a stream. `plan` receives the time, the number of the stream and the number of
    /// shards that the account has open.
    pub(crate) fn create(
        &self,
        name: &str,
        plan: impl FnOnce(u64, u64, usize) -> Result<Creation, ApiError>,
    ) -> Result<(), ApiError> {
        let mut streams = lock::write(&self.streams);
        let now_ms = self.now_ms();
        drop_deleted(&mut streams, now_ms);
        if streams.contains_key(name) {
            let account = &self.home.account;
            let text = format!("Stream {name} under account {account} already exists.");
            return Err(ApiError::in_use(text));
        }
        let id = self.next_stream_id.load(Ordering::Relaxed);
        let creation = plan(now_ms, id, count_open(&streams, now_ms))?;
        let what = ChangeKind::Create(creation);
        let change = Change { stream: name.to_owned(), at_ms: now_ms, what };
        self.journal_change(&change)?;
        self.apply(&mut streams, &change);
        Ok(())
    }

    /// Applies a change.
    fn apply(&self, streams: &mut StreamsByName, change: &Change) {
        if let ChangeKind::Create(creation) = &change.what {
            let arn = self.home.stream_arn(&change.stream);
            let memory = Arc::clone(&self.memory);
            let stream = Stream::create(&change.stream, arn, change.at_ms, creation, memory);
            streams.insert(change.stream.clone(), Arc::new(stream));
            self.next_stream_id.fetch_max(creation.id + 1, Ordering::Relaxed);
        } else if let Some(stream) = streams.get(&change.stream) {
            stream.write().apply(change);
        }
    }

    /// Calls `look` with the number of the next stream and with all streams locked for writing, so
    /// that nothing changes and no record arrives meanwhile.
    pub(crate) fn with_frozen<T>(
        &self,
        look: impl FnOnce(u64, &[(&Stream, RwLockWriteGuard<'_, Topology>)]) -> T,
    ) -> T {
        let streams = lock::write(&self.streams);
        let still: Vec<_> = streams.values().map(|stream| (&**stream, stream.write())).collect();
        look(self.next_stream_id.load(Ordering::Relaxed), &still)
    }

    /// Returns the stream of the given number, even if its deletion is over.
    pub(crate) fn find_by_id(&self, id: u64) -> Option<Arc<Stream>> {
        lock::read(&self.streams).values().find(|stream| stream.id == id).cloned()
    }

    /// Returns, by stream number, the time before which records are past retention, for each
    /// existing stream.
    pub(crate) fn horizons(&self, now_ms: u64) -> BTreeMap<u64, u64> {
        let horizon = |stream: &Arc<Stream>| stream.read().horizon_ms(now_ms);
        let present = self.present_streams();
        present.iter().map(|(stream, _)| (stream.id, horizon(stream))).collect()
    }

    /// Raises the number of the next stream to at least `next`.
    pub(crate) fn skip_stream_ids(&self, next: u64) {
        self.next_stream_id.fetch_max(next, Ordering::Relaxed);
    }

    /// Replays a change from the journal.
    pub fn replay_change(&self, change: &Change) {
        self.apply(&mut lock::write(&self.streams), change);
    }
}

/// Drops streams whose deletion is over. They hold their records until then.
fn drop_deleted(streams: &mut StreamsByName, now_ms: u64) {
    streams.retain(|_, stream| stream.read().status(now_ms).is_some());
}

/// Counts the open shards of all streams that exist and are not being deleted.
fn count_open(streams: &StreamsByName, now_ms: u64) -> usize {
    let open = streams.values().map(|stream| {
        let topology = stream.read();
        let counts = topology.status(now_ms).is_some_and(|s| s != Status::Deleting);
        if counts { topology.open_shards().len() } else { 0 }
    });
    open.sum()
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = lock::read(&self.streams).keys().cloned().collect();
        f.debug_struct("Engine")
            .field("home", &self.home)
            .field("streams", &names)
            .finish_non_exhaustive()
    }
}
