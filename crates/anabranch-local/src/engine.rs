//! The engine: all streams, and the one way in which they change.
//!
//! ```text
//! request ── plan ──> Change ── journal ──> apply ──> visible       (metadata)
//! records ── route ─> shard lock { number, journal, store } ─ wake  (data)
//! ```
//!
//! Everything here is synchronous and bounded; no lock is ever held across an await. Locks are
//! taken in the order streams, topology, shard.

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
    /// How the engine behaves.
    options: EngineOptions,
    /// Where the engine reads the time.
    clock: Clock,
    /// Which run this is: iterators of another one have expired.
    run_id: u64,
    /// The memory that records take.
    memory: Arc<RecordMemory>,
    /// The account and region in ARNs and messages.
    pub(crate) home: AccountRegion,
    /// All streams by name. Changes hold it for writing, so that one plan sees one account.
    streams: RwLock<StreamsByName>,
    /// The number of the next stream.
    next_stream_id: AtomicU64,
    /// Whether shards refuse what is above the service's rates.
    limits_enforced: AtomicBool,
    /// What goes wrong on request.
    faults: Faults,
    /// Keeps changes and records, if the engine is durable.
    journal: OnceLock<Arc<dyn Journal>>,
}

type StreamsByName = BTreeMap<String, Arc<Stream>>;

/// How a request names its stream: by name, by ARN, or by both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamRef<'a> {
    /// The stream's name.
    pub name: Option<Cow<'a, str>>,
    /// The stream's ARN.
    pub arn: Option<Cow<'a, str>>,
}

impl<'a> StreamRef<'a> {
    /// The stream of the given name.
    pub fn named(name: &'a str) -> Self {
        Self { name: Some(Cow::Borrowed(name)), arn: None }
    }
}

/// What a plan may look at: one stream, and the account around it.
pub(crate) struct EngineView<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) topology: &'a Topology,
    pub(crate) status: Status,
    pub(crate) now_ms: u64,
    pub(crate) account_shards: usize,
}

impl Engine {
    /// An engine without streams.
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

    /// The engine's options.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Bytes of memory that the records of all streams take, index and unused room included.
    pub fn memory_bytes(&self) -> usize {
        self.memory.used()
    }

    pub(crate) fn memory(&self) -> &Arc<RecordMemory> {
        &self.memory
    }

    pub(crate) fn run_id(&self) -> u64 {
        self.run_id
    }

    /// Frees the memory of records that are past retention and of streams that are gone. A server
    /// calls it by its clock; puts and reads free the shard that they are about.
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

    /// What goes wrong on request.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Whether shards refuse what is above the service's rates.
    pub fn limits_enforced(&self) -> bool {
        self.limits_enforced.load(Ordering::Relaxed)
    }

    /// Turns the service's rates on or off. A subscription keeps what held when it began.
    pub fn enforce_limits(&self, enforce: bool) {
        self.limits_enforced.store(enforce, Ordering::Relaxed);
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// From now on every change and record goes to `journal` first. Called once, after a replay.
    pub fn set_journal(&self, journal: Arc<dyn Journal>) {
        let first = self.journal.set(journal).is_ok();
        debug_assert!(first, "an engine has one journal");
    }

    /// Waits until everything done so far is as durable as the journal's policy asks.
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

    /// The streams that are there now, by name.
    pub(crate) fn present_streams(&self) -> Vec<(Arc<Stream>, Status)> {
        let now = self.now_ms();
        let streams = lock::read(&self.streams);
        let present = streams.values().filter_map(|stream| {
            let status = stream.read().status(now)?;
            Some((Arc::clone(stream), status))
        });
        present.collect()
    }

    /// The stream of the given name, if it is there now.
    pub(crate) fn find_by_name(&self, name: &str) -> Result<Arc<Stream>, ApiError> {
        let stream = lock::read(&self.streams).get(name).cloned();
        let now = self.now_ms();
        stream
            .filter(|stream| stream.read().status(now).is_some())
            .ok_or_else(|| self.stream_not_found(name))
    }

    /// The stream that a request names.
    pub(crate) fn find(&self, stream: &StreamRef<'_>) -> Result<Arc<Stream>, ApiError> {
        self.find_by_name(&self.resolve(stream)?)
    }

    /// The name of the stream that a request names, checked but not looked up.
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

    /// Changes one stream: `plan` looks at it and says what is to happen, or that nothing is.
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

    /// Creates a stream: `plan` is given the time, the number of the stream and the shards that
    /// the account has open.
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

    /// Carries a change out on all streams.
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

    /// Lets `look` see the number of the next stream and all streams while nothing changes and
    /// no record comes in.
    pub(crate) fn with_frozen<T>(
        &self,
        look: impl FnOnce(u64, &[(&Stream, RwLockWriteGuard<'_, Topology>)]) -> T,
    ) -> T {
        let streams = lock::write(&self.streams);
        let still: Vec<_> = streams.values().map(|stream| (&**stream, stream.write())).collect();
        look(self.next_stream_id.load(Ordering::Relaxed), &still)
    }

    /// The stream of the given number, gone or not.
    pub(crate) fn find_by_id(&self, id: u64) -> Option<Arc<Stream>> {
        lock::read(&self.streams).values().find(|stream| stream.id == id).cloned()
    }

    /// By number, each stream that is there and the time before which its records are past
    /// retention.
    pub(crate) fn horizons(&self, now_ms: u64) -> BTreeMap<u64, u64> {
        let horizon = |stream: &Arc<Stream>| stream.read().horizon_ms(now_ms);
        let present = self.present_streams();
        present.iter().map(|(stream, _)| (stream.id, horizon(stream))).collect()
    }

    /// Gives no new stream a number below `next`.
    pub(crate) fn skip_stream_ids(&self, next: u64) {
        self.next_stream_id.fetch_max(next, Ordering::Relaxed);
    }

    /// Plays a change of the journal again.
    pub fn replay_change(&self, change: &Change) {
        self.apply(&mut lock::write(&self.streams), change);
    }
}

/// Lets go of streams whose deletion is over: they hold their records until then.
fn drop_deleted(streams: &mut StreamsByName, now_ms: u64) {
    streams.retain(|_, stream| stream.read().status(now_ms).is_some());
}

/// Open shards of all streams that are there.
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
