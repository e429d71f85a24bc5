//! The machine, a minimal service, and a faulty network between them.

use crate::oracle::Oracle;
use crate::service::{Service, distinct_hashes};
use crate::weather::{NetworkFaultRates, ProduceHistoryFlaw};
use anabranch_model::hash::HashKey;
use anabranch_model::lineage::Shard;
use anabranch_model::produce::settings::{KeyOrder, OnFailure, ProducerSettings};
use anabranch_model::produce::{
    Action, EntryResult, Machine, MachineNotice, OfferedRecord, OrderingKey, PutReply, PutRequest,
    RecordContent, RequestEntry, ShardListRead,
};
use anabranch_model::record::PartitionKey;
use anabranch_model::retry::{Backoff, Fault};
use anabranch_model::sequence::SequenceNumber;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A record: the number of its key, and its index among the key's puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PutName(pub(crate) u32, pub(crate) u32);

impl PutName {
    fn data(self, pad: usize) -> Bytes {
        format!("{}:{}:{}", self.0, self.1, "x".repeat(pad)).into()
    }

    pub(crate) fn read(data: &[u8]) -> Self {
        let text = std::str::from_utf8(data).expect("the harness writes text");
        let mut parts = text.split(':').map(|part| part.parse().unwrap_or(0));
        Self(parts.next().unwrap(), parts.next().unwrap())
    }
}

enum WorldEvent {
    Arrive { id: u64, entries: Vec<RequestEntry>, plan: ReplyPlan },
    Answer { id: u64, reply: PutReply },
    ListArrives { read: ShardListRead },
    ListAnswers { read: ShardListRead, list: Result<Vec<Shard>, Fault> },
    Put,
    Reshard,
    Delete,
    Create,
    Deny,
    Resume,
}

/// Treatment of a request by the network.
enum ReplyPlan {
    /// It arrives and is answered after this many milliseconds.
    Answered(u64),
    /// It arrives, and is never answered.
    Silent,
    /// The whole request is refused.
    Refused(Fault),
    /// It is applied, and reported as an internal failure.
    AppliedAndFailed,
    /// It is applied, and a result is missing in the reply.
    Miscounted,
}

/// One run.
pub(crate) struct ProduceWorld {
    now_ms: u64,
    dice: u64,
    weather: NetworkFaultRates,
    flaw: ProduceHistoryFlaw,
    machine: Machine<PutName>,
    service: Service,
    oracle: Oracle,
    queue: BTreeMap<(u64, u64), WorldEvent>,
    next_event: u64,
    puts: Vec<PutName>,
    next_of_key: BTreeMap<u32, u32>,
    in_flight: BTreeMap<u64, (BTreeSet<u128>, Vec<RequestEntry>)>,
    old_list: Vec<Shard>,
    /// True if the service does not answer while the stream is gone.
    unheard: bool,
    /// End of the caller's refusal.
    denied_until_ms: u64,
    problems: Vec<String>,
    pub(crate) strays: usize,
    pub(crate) reads: usize,
}

const FAULTS_UNTIL_MS: u64 = 12_000;
const REPLY_TIMEOUT_MS: u64 = 300;
const KEYS: u64 = 10;

impl ProduceWorld {
    pub(crate) fn new(seed: u64, weather: NetworkFaultRates, flaw: ProduceHistoryFlaw) -> Self {
        let settings = ProducerSettings {
            aggregation: weather.aggregation,
            order: if flaw == ProduceHistoryFlaw::NoOrder {
                KeyOrder::None
            } else {
                KeyOrder::Strict
            },
            on_failure: if flaw == ProduceHistoryFlaw::GoOnBehindHoles {
                OnFailure::Continue
            } else {
                OnFailure::StopKey
            },
            numbered: weather.numbered,
            aggregate_min_bytes: 150,
            aggregate_max_bytes: 400,
            linger_ms: 5,
            deadline_ms: weather.deadline_ms,
            verify_timeout_ms: 700,
            map_idle_ms: 3_000,
            max_requests: 4,
            backoff: Backoff::new(10, 400),
            refusal_backoff: Backoff::new(50, 800),
            shard_bytes_per_second: if weather.tight_rate { 4_000 } else { 1 << 20 },
            ..ProducerSettings::default()
        };
        let mut world = Self {
            now_ms: 0,
            dice: seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9,
            weather,
            flaw,
            machine: Machine::new(settings, seed, 0),
            service: Service::new(2),
            oracle: Oracle::default(),
            queue: BTreeMap::new(),
            next_event: 0,
            puts: Vec::new(),
            next_of_key: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            old_list: Vec::new(),
            unheard: false,
            denied_until_ms: 0,
            problems: Vec::new(),
            strays: 0,
            reads: 0,
        };
        world.old_list = world.service.list(true);
        world.at(0, WorldEvent::Put);
        if weather.reshards {
            world.at(800, WorldEvent::Reshard);
        }
        if weather.recreations {
            let when = 2_000 + world.roll(3_000);
            world.at(when, WorldEvent::Delete);
        }
        if weather.denials {
            let when = world.roll(2_000);
            world.at(when, WorldEvent::Deny);
        }
        world.at(2_000, WorldEvent::Resume);
        world
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.stormy() && self.roll(100) < percent
    }

    fn stormy(&self) -> bool {
        self.now_ms < FAULTS_UNTIL_MS
    }

    fn at(&mut self, in_ms: u64, what: WorldEvent) {
        self.next_event += 1;
        self.queue.insert((self.now_ms + in_ms, self.next_event), what);
    }

    /// Runs to the end. Returns the violations, the number of misrouted Kinesis records, and the
    /// number of list reads.
    pub(crate) fn run(mut self) -> (Vec<String>, usize, usize) {
        let patience_ms = FAULTS_UNTIL_MS + 240_000;
        loop {
            while let Some(action) = self.machine.poll(self.now_ms) {
                self.act(action);
            }
            let wake = self.machine.wake_at();
            if wake.is_some_and(|at| at <= self.now_ms) {
                self.problems.push(format!("at {} the machine spins", self.now_ms));
                break;
            }
            let event = self.queue.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = [wake, event].into_iter().flatten().min() else { break };
            if next > patience_ms {
                break;
            }
            self.now_ms = next;
            while let Some(entry) = self.queue.first_entry() {
                if entry.key().0 > self.now_ms {
                    break;
                }
                let happening = entry.remove();
                self.happen(happening);
            }
        }
        let stop_keys = true;
        let mut problems = self.problems;
        problems.extend(self.oracle.problems(&self.service, &self.puts, stop_keys));
        let NetworkFaultRates { refusals, deadline_ms, recreations, .. } = self.weather;
        if refusals == 0 && deadline_ms.is_none() && !recreations {
            problems.extend(self.oracle.not_placed());
        }
        (problems, self.strays, self.reads)
    }

    fn act(&mut self, action: Action<PutName>) {
        match action {
            Action::Send(request) => self.send(request),
            Action::ListShards(read) => {
                self.reads += 1;
                let delay = 1 + self.roll(60);
                self.at(delay, WorldEvent::ListArrives { read });
            }
            Action::Complete(mut settled) => {
                let mut sub = 0;
                settled.records.drain(|ticket, _| {
                    self.oracle.settle(ticket, &settled.fate, sub);
                    sub += 1;
                });
                self.machine.reuse(settled.records);
            }
            Action::Notice(MachineNotice::Misrouted { .. }) => self.strays += 1,
            Action::Notice(_) => {}
        }
    }

    fn send(&mut self, request: PutRequest) {
        let PutRequest { id, entries, single, after, .. } = request;
        let hashes: Vec<u128> = entries.iter().flat_map(distinct_hashes).collect();
        let set: BTreeSet<u128> = hashes.iter().copied().collect();
        let others = self.in_flight.values().any(|(keys, _)| !keys.is_disjoint(&set));
        if self.flaw != ProduceHistoryFlaw::NoOrder && (set.len() < hashes.len() || others) {
            self.problems.push(format!("at {} a key is on its way twice", self.now_ms));
        }
        if single != self.weather.numbered || (after.is_some() && !single) {
            self.problems.push("the wrong call for the mode".to_owned());
        }
        self.in_flight.insert(id, (set, entries.clone()));
        let there = 1 + self.roll(30);
        let back = 1 + self.roll(30);
        let refusals = self.weather.refusals;
        if self.stormy() && self.roll(1_000) < refusals {
            let entries = Vec::new();
            let fault = if self.roll(2) == 0 { Fault::Missing } else { Fault::Invalid };
            return self
                .at(there, WorldEvent::Arrive { id, entries, plan: ReplyPlan::Refused(fault) });
        }
        let failures = self.weather.request_failures;
        if !self.chance(failures) {
            return self
                .at(there, WorldEvent::Arrive { id, entries, plan: ReplyPlan::Answered(back) });
        }
        let lost = |fault| Err((fault, Arc::from("lost")));
        match self.roll(8) {
            0 => self.at(there, WorldEvent::Answer { id, reply: lost(Fault::NotSent) }),
            1 => {
                self.at(REPLY_TIMEOUT_MS, WorldEvent::Answer { id, reply: lost(Fault::ReplyLost) });
            }
            2 => {
                self.at(there, WorldEvent::Arrive { id, entries, plan: ReplyPlan::Silent });
                self.at(REPLY_TIMEOUT_MS, WorldEvent::Answer { id, reply: lost(Fault::ReplyLost) });
            }
            3 => {
                let late = REPLY_TIMEOUT_MS + 1 + self.roll(1_500);
                self.at(late, WorldEvent::Arrive { id, entries, plan: ReplyPlan::Silent });
                self.at(REPLY_TIMEOUT_MS, WorldEvent::Answer { id, reply: lost(Fault::ReplyLost) });
            }
            4 => self
                .at(there, WorldEvent::Arrive { id, entries, plan: ReplyPlan::AppliedAndFailed }),
            5 => self.at(there, WorldEvent::Arrive { id, entries, plan: ReplyPlan::Miscounted }),
            6 => {
                let plan = ReplyPlan::Refused(Fault::Throttled);
                self.at(there, WorldEvent::Arrive { id, entries: Vec::new(), plan });
            }
            _ => {
                let plan = ReplyPlan::Refused(Fault::Internal);
                self.at(there, WorldEvent::Arrive { id, entries: Vec::new(), plan });
            }
        }
    }

    fn happen(&mut self, happening: WorldEvent) {
        match happening {
            WorldEvent::Arrive { id, entries, plan } => self.arrive(id, &entries, &plan),
            WorldEvent::Answer { id, reply } => {
                self.in_flight.remove(&id);
                self.machine.reply(id, reply, self.now_ms);
            }
            WorldEvent::ListArrives { read } => {
                let percent = self.weather.list_failures;
                let list = if percent == 100 || self.chance(percent) {
                    Err(Fault::AccessDenied)
                } else if !self.service.there {
                    Err(Fault::Missing)
                } else if self.flaw == ProduceHistoryFlaw::OldList {
                    Ok(self.old_list.clone())
                } else {
                    Ok(self.service.list(read.full))
                };
                let delay = 1 + self.roll(60);
                self.at(delay, WorldEvent::ListAnswers { read, list });
            }
            WorldEvent::ListAnswers { read, list } => self.machine.shards(read, list, self.now_ms),
            WorldEvent::Put => self.put(),
            WorldEvent::Reshard => self.reshard(),
            WorldEvent::Delete => {
                self.service.there = false;
                self.old_list = self.service.list(false);
                // Half of the time it is back before any caller learned that it is gone.
                self.unheard = self.roll(2) == 0;
                let gone_ms = if self.unheard { 500 } else { 5_000 };
                self.at(gone_ms, WorldEvent::Create);
            }
            WorldEvent::Create => {
                let shards = 1 + self.roll(4);
                self.service.create(u32::try_from(shards).unwrap());
            }
            WorldEvent::Deny => {
                self.denied_until_ms = self.now_ms + self.roll(2_500);
                if self.stormy() {
                    let pause = 500 + self.roll(4_000);
                    self.at(pause, WorldEvent::Deny);
                }
            }
            WorldEvent::Resume => {
                let stopped: Vec<OrderingKey> = self.machine.stopped_keys().cloned().collect();
                for key in stopped {
                    let number: u32 = key.key.as_str()[1..].parse().unwrap();
                    let last = self.next_of_key[&number];
                    self.oracle.resumed.entry(number).or_default().push(last);
                    assert!(self.machine.resume(&key));
                }
                if self.stormy() {
                    let pause = self.roll(3_000);
                    self.at(pause, WorldEvent::Resume);
                }
            }
        }
    }

    fn put(&mut self) {
        let mut arriving = Vec::new();
        for _ in 0..=self.roll(6) {
            let key = u32::try_from(self.roll(KEYS)).unwrap();
            let next = self.next_of_key.entry(key).or_insert(0);
            *next += 1;
            let name = PutName(key, *next);
            self.puts.push(name);
            let text = format!("k{key}");
            // Some keys have an explicit hash key, two of them the same one.
            let explicit = (key % 4 == 3).then(|| HashKey(u128::MAX / 5 * u128::from(key % 3)));
            // A few are so large that they are not copied.
            let large = self.roll(40) == 0;
            let pad = usize::try_from(self.roll(60)).unwrap() + if large { 5_000 } else { 0 };
            let data = name.data(pad);
            let both = [text.as_bytes(), &data].concat();
            let hash = HashKey::effective(&text, explicit);
            arriving.push((name, PartitionKey::from(text), hash, explicit.is_some(), data, both));
        }
        let hash = |at: usize| arriving[at].2;
        let offer = |at: usize| {
            let (_, key, hash, is_explicit, data, both) = &arriving[at];
            let content = match at {
                0 => RecordContent::Shared { key, data },
                _ => RecordContent::Borrowed { both, key_len: key.len() },
            };
            OfferedRecord { content, hash: *hash, is_explicit: *is_explicit }
        };
        let names = arriving.iter().map(|(name, ..)| *name);
        self.machine.put_all(names, hash, offer, self.now_ms);
        if self.stormy() {
            let pause = self.roll(60);
            self.at(pause, WorldEvent::Put);
        } else {
            self.machine.skip_linger(self.now_ms);
        }
    }

    fn reshard(&mut self) {
        if self.service.there {
            if self.service.streams.len() == 1 {
                self.old_list = self.service.list(true);
            }
            let choice = usize::try_from(self.roll(100)).unwrap();
            if self.roll(2) == 0 && self.service.open_places().len() < 8 {
                self.service.split(choice);
            } else {
                self.service.merge(choice);
            }
        }
        if self.stormy() {
            let pause = 100 + self.roll(1_500);
            self.at(pause, WorldEvent::Reshard);
        }
    }

    fn arrive(&mut self, id: u64, entries: &[RequestEntry], plan: &ReplyPlan) {
        let back = match plan {
            ReplyPlan::Answered(back) => *back,
            _ => 1,
        };
        if let ReplyPlan::Refused(fault) = plan {
            let reply = Err((*fault, Arc::from("refused")));
            return self.at(back, WorldEvent::Answer { id, reply });
        }
        if self.now_ms < self.denied_until_ms {
            let reply = Err((self.denial(), Arc::from("denied")));
            return self.at(back, WorldEvent::Answer { id, reply });
        }
        if !self.service.there {
            let missing = (back, Err((Fault::Missing, Arc::from("no such stream"))));
            let lost = (REPLY_TIMEOUT_MS, Err((Fault::ReplyLost, Arc::from("lost"))));
            if !matches!(plan, ReplyPlan::Silent) {
                let (after_ms, reply) = if self.unheard { lost } else { missing };
                self.at(after_ms, WorldEvent::Answer { id, reply });
            }
            return;
        }
        let percent = self.weather.entry_failures;
        let mut results: Vec<EntryResult> = Vec::new();
        for entry in entries {
            if self.weather.denials && self.chance(3) {
                let fault = self.denial();
                results.push(EntryResult::Failed { fault, detail: "denied".into() });
            } else if self.chance(percent) {
                let fault = if self.roll(3) > 0 { Fault::Throttled } else { Fault::Internal };
                if fault == Fault::Internal && self.roll(2) == 0 {
                    self.service.store(entry);
                }
                results.push(EntryResult::Failed { fault, detail: "entry".into() });
            } else {
                let (shard, sequence) = self.service.store(entry);
                results.push(EntryResult::Placed { shard, sequence });
            }
        }
        match plan {
            ReplyPlan::Silent => {}
            ReplyPlan::AppliedAndFailed => {
                let reply = Err((Fault::Internal, Arc::from("internal")));
                self.at(back, WorldEvent::Answer { id, reply });
            }
            ReplyPlan::Miscounted => {
                results.pop();
                self.at(back, WorldEvent::Answer { id, reply: Ok(results) });
            }
            _ => {
                self.bend(entries, &mut results);
                self.at(back, WorldEvent::Answer { id, reply: Ok(results) });
            }
        }
    }

    /// Returns a refusal of the caller.
    fn denial(&mut self) -> Fault {
        let faults = [Fault::AccessDenied, Fault::KeyUnusable, Fault::CredentialsExpired];
        match self.flaw {
            ProduceHistoryFlaw::GiveUpWhenDenied => Fault::Missing,
            _ => faults[usize::try_from(self.roll(3)).unwrap()],
        }
    }

    /// Alters a reply for the flaws that need it.
    fn bend(&mut self, entries: &[RequestEntry], results: &mut [EntryResult]) {
        for (entry, result) in entries.iter().zip(results) {
            match (self.flaw, &mut *result) {
                (ProduceHistoryFlaw::BlindJudge, EntryResult::Placed { shard, .. }) => {
                    let hash = HashKey::effective(entry.key.as_str(), entry.hash);
                    let known =
                        self.old_list.iter().find(|old| old.is_open() && old.range.contains(hash));
                    if let Some(old) = known {
                        *shard = old.id.clone();
                    }
                }
                (ProduceHistoryFlaw::RetryAtTheBack, EntryResult::Failed { fault, .. }) => {
                    // Reported as placed, and put again later.
                    let (shard, sequence) = (self.old_list[0].id.clone(), SequenceNumber::ZERO);
                    if *fault == Fault::Throttled {
                        *result = EntryResult::Placed { shard, sequence };
                        let again = entry.clone();
                        self.next_event += 1;
                        let at = (self.now_ms + 200, self.next_event);
                        let (id, plan) = (u64::MAX, ReplyPlan::Silent);
                        self.queue
                            .insert(at, WorldEvent::Arrive { id, entries: vec![again], plan });
                    }
                }
                _ => {}
            }
        }
    }
}
