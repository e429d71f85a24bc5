//! The machine: events go in, actions come out, and nothing else happens.
//!
//! | event | what it may cause |
//! |---|---|
//! | `put_all` | a record stands in its lane |
//! | `reply` | records are settled, a container waits to be sent again, or to be judged, or shards are paused |
//! | `shards` | containers are judged, lanes are cut anew, a barrier begins |
//! | time, by `poll` | requests leave, list reads begin, deadlines pass |

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

/// How many containers' memory is kept for others.
const SPARE_MOST: usize = 64;
/// That of larger containers is not.
const SPARE_RECORDS_MOST: usize = 512;

/// Where lanes, records and containers stand. `T` is whom to tell a record's outcome.
#[derive(Debug)]
pub struct Machine<T> {
    /// How the producer behaves.
    settings: ProducerSettings,
    /// The number of the next put.
    next_number: u64,
    /// Records up to this number wait for no others.
    hurry_below: u64,
    /// Records without an outcome.
    outstanding: usize,
    /// Which shard takes which hash.
    router: Router,
    /// The lanes. A place is used again when its lane is gone.
    lanes: Vec<Option<ShardQueue<T>>>,
    /// Free places among the lanes.
    free: Vec<usize>,
    /// The lane of each open shard of the map, once it has one.
    shard_lanes: Vec<Option<usize>>,
    /// The lanes of single hashes.
    hash_lanes: HashMap<u128, usize, Fold>,
    /// Lanes that may send, in the order in which they became able to.
    ready: VecDeque<usize>,
    /// The rate of each open shard of the map, and the lanes that wait for it.
    limiters: Vec<ShardLimiter>,
    /// When lanes and shards are to be looked at again.
    timers: BinaryHeap<Reverse<(u64, MachineTimer)>>,
    /// Requests on their way.
    requests: BTreeMap<u64, InFlight>,
    /// The number of the next request.
    next_request: u64,
    /// Containers on their way or unjudged.
    flights: BTreeMap<u64, InFlightRecord<T>>,
    /// The number of the next container.
    next_container: u64,
    /// Containers whose lane is gone, with their hashes: what barriers wait for.
    orphans: BTreeMap<u64, HashRange>,
    /// Containers in a shard that was not predicted, or by a map in doubt, by when they are given up
    /// as strays.
    unjudged: BTreeSet<(u64, u64)>,
    /// How many list reads began.
    reads_begun: u64,
    /// When the newest of them did.
    read_began_ms: u64,
    /// Whether the next list has to be a full one, because a shard was missing in a filtered one.
    full_read_wanted: bool,
    /// Where nothing is sent because the service refuses the caller.
    pauses: CallerPauses,
    /// Keys that stand stopped.
    stopped: StoppedKeys,
    /// The last number that was given out in each shard, where requests carry one.
    last_numbers: BTreeMap<crate::ids::ShardId, SequenceNumber>,
    /// The usual time from a request to its reply.
    round_trip_ms: u64,
    /// When deadlines are looked at again.
    expiry_ms: u64,
    /// Builds aggregates, with memory that is used again.
    builder: AggregateBuilder,
    /// The number of the next aggregate, for its mark.
    next_mark: u64,
    /// Memory of containers that are settled, for those to come.
    spare: Vec<Vec<QueuedRecord<T>>>,
    /// Memory of lanes.
    pages: SparePages,
    /// Records on their way into lanes: empty in between, its memory is used again.
    arrivals: GroupBy<T>,
    /// The state of the jitter.
    jitter: u64,
    /// What is to be done, oldest first.
    actions: VecDeque<Action<T>>,
}

/// Hashes of keys are spread already; folding their halves is enough.
pub(super) type Fold = std::hash::BuildHasherDefault<FoldHasher>;

/// Folds a hash key into a table's hash.
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
    /// A machine that knows nothing of the stream. `seed` chooses its jitter.
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

    /// Takes records, each in its order behind those before it: their tickets, and each by its place
    /// among them, first its hash alone. Outcomes come as [`Action::Complete`].
    pub fn put_all<'a>(
        &mut self,
        tickets: impl Iterator<Item = T>,
        hash: impl Fn(usize) -> HashKey,
        offer: impl Fn(usize) -> OfferedRecord<'a>,
        now_ms: u64,
    ) {
        let first = self.next_number;
        // Sorted by lane, so that the records of a lane are written while its memory is at hand.
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

    /// Why a record that is put now, or cut anew, is refused before it is sent.
    #[inline]
    fn refusal(&self, key: impl FnOnce() -> OrderingKey, number: u64) -> Option<RejectReason> {
        if self.stopped.is_empty() { None } else { self.stopped.refusal(&key(), number) }
    }

    /// What is to be done next. `None` until something comes in or [`Machine::wake_at`] is reached.
    pub fn poll(&mut self, now_ms: u64) -> Option<Action<T>> {
        if self.actions.is_empty() {
            self.keep_map(now_ms);
            self.expire(now_ms);
            self.fire_timers(now_ms);
            self.send(now_ms);
        }
        self.actions.pop_front()
    }

    /// When to poll again although nothing came in.
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

    /// Whether a map is of use: at the start, and while something waits. An idle producer lets a
    /// failing list alone.
    fn wants_map(&self) -> bool {
        self.outstanding > 0 || self.reads_begun == 0
    }

    /// Records without an outcome.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Requests on their way.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// The keys that stand stopped.
    pub fn stopped_keys(&self) -> impl Iterator<Item = &OrderingKey> {
        self.stopped.keys()
    }

    /// Whether so many keys stopped that the producer did.
    pub fn has_stopped(&self) -> bool {
        self.stopped.overflowed()
    }

    /// Whether there is a map, and no evidence against it.
    pub fn map_is_ready(&self) -> bool {
        self.router.refresh.is_ready()
    }

    /// Lets a stopped key go on, also after the set of stopped keys overflowed. Returns `false` if
    /// the key did not stand stopped, or if as many keys as may stand stopped were resumed one by
    /// one since the producer stopped.
    ///
    /// What is put from now on has no order against the records that stopped it.
    pub fn resume(&mut self, key: &OrderingKey) -> bool {
        self.stopped.resume(key, self.next_number)
    }

    /// Lets all stopped keys go on, and a producer that stopped because of them. Gives the number
    /// of keys that were known to stand stopped.
    pub fn resume_all(&mut self) -> usize {
        self.stopped.resume_all()
    }

    /// Everything that was put so far waits for no other records.
    pub fn skip_linger(&mut self, now_ms: u64) {
        if self.hurry_below == self.next_number {
            return;
        }
        self.hurry_below = self.next_number;
        for at in 0..self.lanes.len() {
            self.touch(at, now_ms);
        }
    }

    /// The bytes that a container grows to: what the shard takes during two round trips, so that
    /// one container on its way keeps the shard busy.
    fn aggregate_target(&self) -> usize {
        let flow = self.settings.shard_bytes_per_second.saturating_mul(self.round_trip_ms) / 500;
        let flow = usize::try_from(flow).unwrap_or(usize::MAX);
        let most = self.aggregate_max();
        flow.clamp(self.settings.aggregate_min_bytes.min(most), most)
    }

    /// The most that an aggregate may hold. Its key of one byte counts to the record maximum.
    fn aggregate_max(&self) -> usize {
        let stream = self.settings.record_max_bytes.saturating_sub(1);
        self.settings.aggregate_max_bytes.min(stream)
    }

    /// How many containers of a lane may be on their way.
    fn in_flight_per_queue(&self) -> usize {
        match self.settings.order {
            KeyOrder::Strict => 1,
            KeyOrder::None => usize::MAX,
        }
    }

    fn lane_mut(&mut self, at: usize) -> &mut ShardQueue<T> {
        self.lane_and_pages(at).0
    }

    /// A lane, and the memory for what is written down in it.
    #[inline]
    fn lane_and_pages(&mut self, at: usize) -> (&mut ShardQueue<T>, &mut SparePages) {
        let lane = self.lanes[at].as_mut();
        (lane.expect("a lane that is referred to has not been removed"), &mut self.pages)
    }

    /// The lane of a hash, made if there is none.
    fn lane_for(&mut self, hash: HashKey) -> usize {
        if let Some(shard) = self.router.shard_lane(hash) {
            if let Some(at) = self.shard_lanes[shard] {
                return at;
            }
            let map = self.router.map().expect("the shard was found in the map");
            let (range, id) = map.open_shard(shard).expect("the place was found in the map");
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

    /// How many containers of older lanes a lane over these hashes has to wait for.
    fn count_blocking_records(&self, range: HashRange) -> usize {
        match self.settings.order {
            KeyOrder::Strict => self.orphans.values().filter(|hull| hull.overlaps(&range)).count(),
            KeyOrder::None => 0,
        }
    }

    /// Removes the lane of a hash once it is idle. Lanes of shards stay.
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

    /// A number for jitter, by the splitmix64 sequence.
    fn entropy(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.jitter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Takes the memory of settled records back, to use it again.
    pub fn reuse(&mut self, records: CarriedRecords<T>) {
        let CarriedRecords::Queued(mut records) = records else { return };
        records.clear();
        if self.spare.len() < SPARE_MOST && (1..=SPARE_RECORDS_MOST).contains(&records.capacity()) {
            self.spare.push(records);
        }
    }

    /// What was decided already, without deciding more.
    pub fn next_action(&mut self) -> Option<Action<T>> {
        self.actions.pop_front()
    }

    /// Gives records their outcome.
    fn complete(&mut self, records: CarriedRecords<T>, fate: OutcomeKind) {
        if records.is_empty() {
            return;
        }
        self.outstanding -= records.len();
        self.actions.push_back(Action::Complete(CompletedRecords { records, fate }));
    }
}
