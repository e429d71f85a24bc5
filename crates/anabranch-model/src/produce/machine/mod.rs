//! The state machine of the producer: events go in, actions come out, without side effects.
//!
//! | event | effects |
//! |---|---|
//! | `put_all` | a record joins its queue |
//! | `reply` | records complete; Kinesis records are retried or verified; shards are paused |
//! | `shards` | Kinesis records are verified, records are rerouted, a barrier begins |
//! | time, by `poll` | requests are sent, list reads begin, deadlines pass |

mod action;
mod limit;
mod send;
mod judge;
mod pause;
mod reshard;
mod give_up;
mod expire;

pub use action::{
    Action, EntryResult, MachineNotice, PutReply, PutRequest, RequestEntry, ShardListRead,
    ShardListResult,
};

use super::carried_records::CarriedRecords;
use super::outcome::{CompletedRecords, OutcomeKind, RejectReason};
use super::paged_queue::{QueuedRecord, SparePages};
use super::pending::OfferedRecord;
use super::router::Router;
use super::seal::InFlightRecord;
use super::settings::{KeyOrder, ProducerSettings};
use super::shard_queue::{QueueScope, ShardQueue};
use super::stopped_keys::{OrderingKey, StoppedKeys};
use crate::aggregate::encode::AggregateBuilder;
use crate::group_by::GroupBy;
use crate::hash::{HashKey, HashRange};
use crate::sequence::SequenceNumber;
use action::InFlight;
use limit::ShardLimiter;
use pause::CallerPauses;
use send::MachineTimer;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};

/// Number of spare record vectors kept for later Kinesis records.
const SPARE_MOST: usize = 64;
/// Capacity, in records, above which a vector is not kept.
const SPARE_RECORDS_MOST: usize = 512;

/// State of all queues, records and requests of a producer. `T` is the ticket that receives a
/// record's outcome.
#[derive(Debug)]
pub struct Machine<T> {
    settings: ProducerSettings,
    /// Number of the next put.
    next_number: u64,
    /// Records with a lower number do not linger.
    hurry_below: u64,
    outstanding: usize,
    /// Maps hashes to shards.
    router: Router,
    /// Queues. A slot is reused once its queue is gone.
    lanes: Vec<Option<ShardQueue<T>>>,
    /// Free slots in `lanes`.
    free: Vec<usize>,
    /// The queue of each open shard of the map, once it has one.
    shard_lanes: Vec<Option<usize>>,
    /// Queues of single hashes.
    hash_lanes: HashMap<u128, usize, Fold>,
    /// Queues that may send, in the order in which they became ready.
    ready: VecDeque<usize>,
    /// The rate of each open shard of the map, and the queues that wait for it.
    limiters: Vec<ShardLimiter>,
    /// Times at which queues and shards are checked again.
    timers: BinaryHeap<Reverse<(u64, MachineTimer)>>,
    /// Requests in flight.
    requests: BTreeMap<u64, InFlight>,
    next_request: u64,
    /// Kinesis records in flight or unverified.
    flights: BTreeMap<u64, InFlightRecord<T>>,
    next_container: u64,
    /// Kinesis records whose queue is gone, with their hash spans: barriers wait for these.
    orphans: BTreeMap<u64, HashRange>,
    /// Unverified Kinesis records by the time after which they count as misrouted. Their shard was
    /// not the predicted one, or the map was in doubt.
    unjudged: BTreeSet<(u64, u64)>,
    /// Number of list reads begun.
    reads_begun: u64,
    /// Start of the newest list read.
    read_began_ms: u64,
    /// True if the next list must include closed shards, because a filtered one lacked a shard.
    full_read_wanted: bool,
    /// Hash ranges to which nothing is sent because the service refuses the caller.
    pauses: CallerPauses,
    stopped: StoppedKeys,
    /// Last sequence number returned by each shard; used if requests carry one.
    last_numbers: BTreeMap<crate::ids::ShardId, SequenceNumber>,
    /// Moving average of the time from a request to its reply.
    round_trip_ms: u64,
    /// Time of the next deadline check.
    expiry_ms: u64,
    /// Builds aggregates; its memory is reused.
    builder: AggregateBuilder,
    /// Number of the next aggregate, for its deduplication tag.
    next_mark: u64,
    /// Memory of completed Kinesis records, for later ones.
    spare: Vec<Vec<QueuedRecord<T>>>,
    /// Spare pages of queues.
    pages: SparePages,
    /// Records sorted by queue during `put_all`. Empty between calls; its memory is reused.
    arrivals: GroupBy<T>,
    /// State of the jitter sequence.
    jitter: u64,
    /// Pending actions, oldest first.
    actions: VecDeque<Action<T>>,
}

/// A hasher for hash keys. These are well distributed, so folding their halves is enough.
pub(super) type Fold = std::hash::BuildHasherDefault<FoldHasher>;

/// Folds a hash key into a hash-table hash.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct FoldHasher(u64);

impl std::hash::Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn write_u128(&mut self, value: u128) {
        #[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
        let folded = (value >> 64) as u64 ^ value as u64;
        self.0 = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl<T> Machine<T> {
    /// Creates a machine without a shard map. `seed` chooses its jitter.
    pub fn new(settings: ProducerSettings, seed: u64, now_ms: u64) -> Self {
        Self {
            settings,
            next_number: 0,
            hurry_below: 0,
            outstanding: 0,
            router: Router::new(settings.aggregation, now_ms),
            lanes: Vec::new(),
            free: Vec::new(),
            shard_lanes: Vec::new(),
            hash_lanes: HashMap::default(),
            ready: VecDeque::new(),
            limiters: Vec::new(),
            timers: BinaryHeap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            flights: BTreeMap::new(),
            next_container: 0,
            orphans: BTreeMap::new(),
            unjudged: BTreeSet::new(),
            reads_begun: 0,
            read_began_ms: 0,
            full_read_wanted: false,
            pauses: CallerPauses::new(settings.refusal_backoff),
            stopped: StoppedKeys::new(settings.max_stopped_keys),
            last_numbers: BTreeMap::new(),
            round_trip_ms: 20,
            expiry_ms: 0,
            builder: AggregateBuilder::new(),
            next_mark: 0,
            spare: Vec::new(),
            pages: SparePages::new(),
            arrivals: GroupBy::default(),
            jitter: seed,
            actions: VecDeque::new(),
        }
    }

    /// Accepts records in put order. `hash(i)` and `offer(i)` give the hash and the content of the
    /// record of the `i`th ticket. Outcomes arrive as [`Action::Complete`].
    pub fn put_all<'a>(
        &mut self,
        tickets: impl Iterator<Item = T>,
        hash: impl Fn(usize) -> HashKey,
        offer: impl Fn(usize) -> OfferedRecord<'a>,
        now_ms: u64,
    ) {
        let first = self.next_number;
        // Grouped by queue, so that the records of a queue are written while its memory is in
        // cache.
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for (place, ticket) in tickets.enumerate() {
            let number = self.next_number;
            self.next_number += 1;
            self.outstanding += 1;
            if let Some(why) = self.refusal(|| offer(place).key_id(), number) {
                arrivals.skip();
                let refused = vec![offer(place).pending(number, now_ms, ticket)];
                self.complete(CarriedRecords::Unpacked(refused), OutcomeKind::Rejected(why));
            } else {
                arrivals.add(self.lane_for(hash(place)), ticket);
            }
        }
        let target = self.aggregate_target();
        arrivals.drain(|at, records| {
            let (lane, pages) = self.lane_and_pages(at);
            let was_empty = lane.is_empty();
            let was_full = lane.queue_bytes >= target;
            for (place, ticket) in records {
                lane.push(&offer(place), first + place as u64, now_ms, ticket, pages);
            }
            if was_empty || (!was_full && lane.queue_bytes >= target) {
                self.touch(at, now_ms);
            }
        });
        self.arrivals = arrivals;
    }

    /// Returns the reason to reject a record that is put or requeued now, if there is one.
    #[inline]
    fn refusal(&self, key: impl FnOnce() -> OrderingKey, number: u64) -> Option<RejectReason> {
        if self.stopped.is_empty() { None } else { self.stopped.refusal(&key(), number) }
    }

    /// Returns the next action. `None` means none until an event arrives or [`Machine::wake_at`] is
    /// reached.
    pub fn poll(&mut self, now_ms: u64) -> Option<Action<T>> {
        if self.actions.is_empty() {
            self.keep_map(now_ms);
            self.expire(now_ms);
            self.fire_timers(now_ms);
            self.send(now_ms);
        }
        self.actions.pop_front()
    }

    /// Returns when to poll again if no event arrives.
    pub fn wake_at(&self) -> Option<u64> {
        if !self.actions.is_empty() {
            return Some(0);
        }
        let lanes = self.timers.peek().map(|Reverse((at, _))| *at);
        let due = if self.wants_map() { self.router.refresh.due_ms() } else { None };
        let unjudged = self.unjudged.first().map(|(at, _)| *at);
        let expiry = self.next_expiry_ms();
        let trust = self.router.trust_again_ms();
        [lanes, due, unjudged, expiry, trust].into_iter().flatten().min()
    }

    /// Returns true if a map is needed: at the start, and while records are outstanding. An idle
    /// producer does not retry a failing list.
    fn wants_map(&self) -> bool {
        self.outstanding > 0 || self.reads_begun == 0
    }

    /// Returns the number of records without an outcome.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns the number of requests in flight.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Returns the stopped keys.
    pub fn stopped_keys(&self) -> impl Iterator<Item = &OrderingKey> {
        self.stopped.keys()
    }

    /// Returns true if the producer stopped because too many keys did.
    pub fn has_stopped(&self) -> bool {
        self.stopped.overflowed()
    }

    /// Returns true if there is a map and no evidence against it.
    pub fn map_is_ready(&self) -> bool {
        self.router.refresh.is_ready()
    }

    /// Resumes a stopped key, also after the set of stopped keys overflowed. Returns `false` if the
    /// key was not stopped. Also returns `false` if `max_stopped_keys` keys have been resumed one
    /// by one since the producer stopped.
    ///
    /// Records put from now on have no order relative to the records that stopped the key.
    pub fn resume(&mut self, key: &OrderingKey) -> bool {
        self.stopped.resume(key, self.next_number)
    }

    /// Resumes all stopped keys, and a producer that stopped because of them. Returns the number of
    /// keys that were remembered as stopped.
    pub fn resume_all(&mut self) -> usize {
        self.stopped.resume_all()
    }

    /// Sends everything put so far without lingering.
    pub fn skip_linger(&mut self, now_ms: u64) {
        if self.hurry_below == self.next_number {
            return;
        }
        self.hurry_below = self.next_number;
        for at in 0..self.lanes.len() {
            self.touch(at, now_ms);
        }
    }

    /// Returns the target size of a Kinesis record: the bytes that a shard takes in two round
    /// trips, so that one record in flight keeps the shard busy.
    fn aggregate_target(&self) -> usize {
        let flow = self.settings.shard_bytes_per_second.saturating_mul(self.round_trip_ms) / 500;
        let flow = usize::try_from(flow).unwrap_or(usize::MAX);
        let most = self.aggregate_max();
        flow.clamp(self.settings.aggregate_min_bytes.min(most), most)
    }

    /// Returns the maximum size of an aggregate. Its one-byte key counts toward the record limit.
    fn aggregate_max(&self) -> usize {
        let stream = self.settings.record_max_bytes.saturating_sub(1);
        self.settings.aggregate_max_bytes.min(stream)
    }

    /// Returns the maximum number of Kinesis records of one queue in flight.
    fn in_flight_per_queue(&self) -> usize {
        match self.settings.order {
            KeyOrder::Strict => 1,
            KeyOrder::None => usize::MAX,
        }
    }

    fn lane_mut(&mut self, at: usize) -> &mut ShardQueue<T> {
        self.lane_and_pages(at).0
    }

    /// Returns a queue, and the spare pages for the records written to it.
    #[inline]
    fn lane_and_pages(&mut self, at: usize) -> (&mut ShardQueue<T>, &mut SparePages) {
        let lane = self.lanes[at].as_mut();
        (lane.expect("a queue that is referred to has not been removed"), &mut self.pages)
    }

    /// Returns the queue of a hash; creates it if there is none.
    fn lane_for(&mut self, hash: HashKey) -> usize {
        if let Some(shard) = self.router.shard_lane(hash) {
            if let Some(at) = self.shard_lanes[shard] {
                return at;
            }
            let map = self.router.map().expect("the shard was found in the map");
            let (range, id) = map.open_shard(shard).expect("the index was found in the map");
            let at = self.add_lane(QueueScope::Shard(id.clone(), range));
            self.shard_lanes[shard] = Some(at);
            return at;
        }
        if let Some(at) = self.hash_lanes.get(&hash.0) {
            return *at;
        }
        let at = self.add_lane(QueueScope::Hash(hash));
        self.hash_lanes.insert(hash.0, at);
        at
    }

    fn add_lane(&mut self, place: QueueScope) -> usize {
        let range = place.range();
        let lane = Some(ShardQueue::new(place, self.count_blocking_records(range)));
        if let Some(at) = self.free.pop() {
            self.lanes[at] = lane;
            return at;
        }
        self.lanes.push(lane);
        self.lanes.len() - 1
    }

    /// Returns the number of Kinesis records of removed queues that block a queue over `range`.
    fn count_blocking_records(&self, range: HashRange) -> usize {
        match self.settings.order {
            KeyOrder::Strict => self.orphans.values().filter(|hull| hull.overlaps(&range)).count(),
            KeyOrder::None => 0,
        }
    }

    /// Removes a single-hash queue once it is idle. Queues of shards stay.
    fn remove_if_idle(&mut self, at: usize) {
        if let Some(Some(lane)) = self.lanes.get(at)
            && let QueueScope::Hash(hash) = lane.place
            && lane.is_idle()
        {
            self.unreserve(at);
            self.hash_lanes.remove(&hash.0);
            self.lanes[at] = None;
            self.free.push(at);
        }
    }

    /// Returns the next jitter value, from the splitmix64 sequence.
    fn entropy(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.jitter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Takes the memory of completed records for reuse.
    pub fn reuse(&mut self, records: CarriedRecords<T>) {
        let CarriedRecords::Queued(mut records) = records else { return };
        records.clear();
        if self.spare.len() < SPARE_MOST && (1..=SPARE_RECORDS_MOST).contains(&records.capacity()) {
            self.spare.push(records);
        }
    }

    /// Returns an action that is already pending, without advancing the machine.
    pub fn next_action(&mut self) -> Option<Action<T>> {
        self.actions.pop_front()
    }

    /// Completes records with an outcome.
    fn complete(&mut self, records: CarriedRecords<T>, fate: OutcomeKind) {
        if records.is_empty() {
            return;
        }
        self.outstanding -= records.len();
        self.actions.push_back(Action::Complete(CompletedRecords { records, fate }));
    }
}
