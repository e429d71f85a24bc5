//! The network between hosts and services: carries calls, in world time.
//!
//! ```text
//! host ── HostLink::carry ──► request in flight ──► service ──► reply in flight ──► host
//!                                    │                                 │
//!                       lost, or after the caller gave up            lost
//! ```
//!
//! Packets in flight belong to the world, not to the host that sent them. A write is applied when
//! it arrives, even if its sender has crashed or is frozen by then.

mod stale_data;

pub use stale_data::PollGuard;

use super::call_faults::CallFaultRates;
use super::kind::{FaultCounts, FaultKind};
use super::old_scans::RowHistory;
use super::partial_commits::PartialCommits;
use super::refusal::RefusalKind;
use super::unreadable::UnreadableRows;
use crate::clock::WorldClock;
use crate::history::HostId;
use anabranch::stream::api::{ShardFilter, ShardList};
use anabranch_model::ids::StreamName;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A service that hosts call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Service {
    /// The lease store.
    Store,
    /// The record stream.
    Stream,
}

/// Direction in which a host is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialOutage {
    /// Nothing goes through.
    Requests,
    /// Requests arrive, but no reply does.
    Replies,
}

/// The network. Clones share one.
#[derive(Clone)]
pub struct Network {
    /// World time.
    clock: WorldClock,
    /// Packets in flight, and the active faults.
    state: Arc<Mutex<NetworkState>>,
}

struct NetworkState {
    /// Decides the outcome of each call.
    rng: Rng,
    /// Decides which reads report a false end of their shard. A separate RNG, so that enabling such
    /// reads leaves all other faults of the seed unchanged.
    ends: Rng,
    /// Decide which writes arrive twice, which calls are refused and which transactions become
    /// visible row by row. Separate RNGs, for the same reason.
    repeats: Rng,
    refusals: Rng,
    commits: Rng,
    /// Decide how old the rows of a scan are, and which rows turn unreadable. Separate RNGs, for
    /// the same reason.
    scans: Rng,
    spoils: Rng,
    /// Sequence number of the next packet. Packets due at the same moment arrive in sending order.
    sent: u64,
    /// Packets in flight, by arrival time and sequence number.
    flying: BTreeMap<(u64, u64), Packet>,
    /// Fault rates of the calls to each service.
    weather: BTreeMap<Service, CallFaultRates>,
    /// End of each service's outage.
    outages: BTreeMap<Service, u64>,
    /// Cuts between hosts and services.
    cuts: BTreeMap<(HostId, Service), HostOutage>,
    /// Services that refuse all calls, with the reason and the end.
    refusing: BTreeMap<Service, (RefusalKind, u64)>,
    /// Streams reported as deleted, with the end.
    hidden: BTreeMap<StreamName, u64>,
    /// Parts of transactions that are not visible yet.
    lags: PartialCommits,
    /// Unreadable rows.
    spoiled: UnreadableRows,
    /// Recent states of the rows of KCL's table.
    past: RowHistory,
    /// Number of pending store polls of each host.
    looks: BTreeMap<HostId, usize>,
    /// Recently answered shard lists, with their times.
    lists: Vec<(u64, (StreamName, ShardFilter), ShardList)>,
    /// Faults injected so far.
    counts: FaultCounts,
}

type Packet = Box<dyn FnOnce() + Send>;

/// A cut between a host and a service.
#[derive(Clone, Copy)]
struct HostOutage {
    cut: PartialOutage,
    /// End of the cut.
    until_ms: u64,
    /// Kind under which the cut is counted.
    kind: FaultKind,
    /// True once a call has met it.
    is_met: bool,
}

/// Outcome drawn for one call.
#[derive(Clone, Copy)]
enum CallFate {
    Answered { there_ms: u64, back_ms: u64 },
    Failed { after_ms: u64 },
    Throttled { after_ms: u64 },
    Refused { after_ms: u64, why: RefusalKind },
    RequestLost,
    ReplyLost { there_ms: u64 },
}

/// Result of a call for its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallResult<T> {
    /// The call was answered.
    Answered(T),
    /// The call failed without effect.
    Failed,
    /// The call was throttled without effect.
    Throttled,
    /// The call was refused without effect.
    Refused(RefusalKind),
    /// The caller gave up. The call may have been carried out, or may still be.
    Silent,
}

impl Network {
    /// Creates a network on which every call is answered.
    pub fn new(seed: u64, clock: WorldClock) -> Self {
        let state = NetworkState {
            rng: Rng::with_seed(seed),
            ends: Rng::with_seed(seed ^ 0x656e_6473),
            repeats: Rng::with_seed(seed ^ 0x7265_7065),
            refusals: Rng::with_seed(seed ^ 0x7265_6675),
            commits: Rng::with_seed(seed ^ 0x636f_6d6d),
            scans: Rng::with_seed(seed ^ 0x7363_616e),
            spoils: Rng::with_seed(seed ^ 0x7370_6f69),
            sent: 0,
            flying: BTreeMap::new(),
            weather: BTreeMap::new(),
            outages: BTreeMap::new(),
            cuts: BTreeMap::new(),
            refusing: BTreeMap::new(),
            hidden: BTreeMap::new(),
            lags: PartialCommits::default(),
            spoiled: UnreadableRows::default(),
            past: RowHistory::default(),
            looks: BTreeMap::new(),
            lists: Vec::new(),
            counts: FaultCounts::default(),
        };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns a link from a host to a service. A call times out after `patience_ms` of the host's
    /// time.
    pub fn link(&self, host: HostId, service: Service, patience_ms: u64) -> HostLink {
        HostLink { network: self.clone(), host, service, patience_ms }
    }

    /// Sets the fault rates of calls to `service`.
    pub fn set_weather(&self, service: Service, weather: CallFaultRates) {
        self.state().weather.insert(service, weather);
    }

    /// Starts an outage of the service.
    pub fn outage(&self, service: Service, for_ms: u64) {
        let until = self.clock.now_ms() + for_ms;
        self.state().outages.insert(service, until);
    }

    /// Cuts the host off from both services.
    pub fn cut(&self, host: HostId, cut: PartialOutage, for_ms: u64) {
        let until_ms = self.clock.now_ms() + for_ms;
        let severed = HostOutage { cut, until_ms, kind: FaultKind::Cut, is_met: false };
        let mut state = self.state();
        state.cuts.insert((host, Service::Store), severed);
        state.cuts.insert((host, Service::Stream), severed);
    }

    /// Cuts the host off from one service.
    pub fn cut_from(&self, host: HostId, service: Service, cut: PartialOutage, for_ms: u64) {
        let kind = match service {
            Service::Store => FaultKind::StoreCut,
            Service::Stream => FaultKind::StreamCut,
        };
        let until_ms = self.clock.now_ms() + for_ms;
        let severed = HostOutage { cut, until_ms, kind, is_met: false };
        self.state().cuts.insert((host, service), severed);
    }

    /// Makes the service refuse all calls.
    pub fn refuse(&self, service: Service, why: RefusalKind, for_ms: u64) {
        let until_ms = self.clock.now_ms() + for_ms;
        self.state().refusing.insert(service, (why, until_ms));
    }

    /// Makes the service report a stream as nonexistent.
    pub fn hide(&self, stream: &StreamName, for_ms: u64) {
        let until_ms = self.clock.now_ms() + for_ms;
        self.state().hidden.insert(stream.clone(), until_ms);
    }

    /// Ends all faults: outages, cuts and refusals are over, every row is readable, and every call
    /// is answered. Packets in flight stay in flight. Row-by-row commits and old scans are kept,
    /// because they are properties of the store and not faults.
    pub fn clear(&self) {
        let mut state = self.state();
        for weather in state.weather.values_mut() {
            let CallFaultRates { slow_commit, old_scan, .. } = *weather;
            *weather = CallFaultRates { slow_commit, old_scan, ..CallFaultRates::none() };
        }
        state.outages.clear();
        state.cuts.clear();
        state.refusing.clear();
        state.hidden.clear();
        state.spoiled.clear();
    }

    /// Counts a fault that was injected elsewhere.
    pub fn count(&self, fault: FaultKind) {
        self.state().counts.add(fault);
    }

    /// Drops all packets in flight. They hold the network, so without this call neither is freed.
    pub fn drop_packets(&self) {
        let packets = std::mem::take(&mut self.state().flying);
        drop(packets);
    }

    /// Returns the faults injected so far.
    pub fn counts(&self) -> FaultCounts {
        self.state().counts.clone()
    }

    /// Returns true while a host waits for a store poll.
    pub(crate) fn looks(&self, host: HostId) -> bool {
        self.state().looks.get(&host).is_some_and(|calls| *calls > 0)
    }

    /// Delivers all due packets, in order.
    pub(crate) fn deliver(&self) {
        let now = self.clock.now_ms();
        loop {
            let due = {
                let mut state = self.state();
                match state.flying.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => return,
                }
            };
            due();
        }
    }

    fn send(&self, after_ms: u64, packet: Packet) {
        let at_ms = self.clock.now_ms() + after_ms;
        let mut state = self.state();
        state.sent += 1;
        let number = state.sent;
        state.flying.insert((at_ms, number), packet);
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        // A world whose checker panicked has ended; its network is only read.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetworkState {
    fn fate(&mut self, link: &HostLink, now_ms: u64) -> CallFate {
        if self.outages.get(&link.service).is_some_and(|until| now_ms < *until) {
            self.counts.add(match link.service {
                Service::Store => FaultKind::Outage,
                Service::Stream => FaultKind::StreamOutage,
            });
            return if self.rng.bool() {
                CallFate::Failed { after_ms: 5 }
            } else {
                CallFate::RequestLost
            };
        }
        let weather = self.weather.get(&link.service).cloned().unwrap_or_else(CallFaultRates::none);
        let there_ms = self.rng.u64(1..=weather.latency_ms);
        let back_ms = self.rng.u64(1..=weather.latency_ms);
        if let Some(severed) = self.severed(link, now_ms) {
            self.count_outage(link.host, severed);
            return match severed.cut {
                PartialOutage::Requests => CallFate::RequestLost,
                PartialOutage::Replies => CallFate::ReplyLost { there_ms },
            };
        }
        if let Some(why) = self.refused(link.service, &weather, now_ms) {
            return CallFate::Refused { after_ms: there_ms, why };
        }
        let patience = link.patience_ms;
        if self.draws_fault(weather.error, FaultKind::Error) {
            CallFate::Failed { after_ms: there_ms }
        } else if self.draws_fault(weather.throttle, FaultKind::Throttle) {
            CallFate::Throttled { after_ms: there_ms }
        } else if self.draws_fault(weather.request_lost, FaultKind::RequestLost) {
            CallFate::RequestLost
        } else if self.draws_fault(weather.reply_lost, FaultKind::ReplyLost) {
            CallFate::ReplyLost { there_ms }
        } else if self.draws_fault(weather.late, FaultKind::Late) {
            // Late by a moment, or by several lease times.
            let most = if self.rng.bool() { 2 } else { 12 };
            CallFate::ReplyLost { there_ms: patience + self.rng.u64(1..=patience * most) }
        } else if self.draws_fault(weather.slow, FaultKind::Slow) {
            let slow = self.rng.u64(1..=patience);
            if self.rng.bool() {
                CallFate::Answered { there_ms: slow, back_ms }
            } else {
                CallFate::Answered { there_ms, back_ms: slow }
            }
        } else {
            CallFate::Answered { there_ms, back_ms }
        }
    }

    fn severed(&self, link: &HostLink, now_ms: u64) -> Option<HostOutage> {
        let severed = self.cuts.get(&(link.host, link.service)).copied();
        severed.filter(|severed| now_ms < severed.until_ms)
    }

    /// Counts a cut once, at the first call that meets it, at either service.
    fn count_outage(&mut self, host: HostId, severed: HostOutage) {
        if severed.is_met {
            return;
        }
        self.counts.add(severed.kind);
        let cut = (severed.kind, severed.until_ms);
        let same = |other: &HostOutage| (other.kind, other.until_ms) == cut;
        for ((of, _), other) in &mut self.cuts {
            other.is_met |= *of == host && same(other);
        }
    }

    fn refused(
        &mut self,
        service: Service,
        weather: &CallFaultRates,
        now_ms: u64,
    ) -> Option<RefusalKind> {
        let refusing = self.refusing.get(&service).filter(|(_, until_ms)| now_ms < *until_ms);
        let why = match refusing {
            Some((why, _)) => *why,
            None if weather.refused > 0 && self.refusals.u32(0..1_000) < weather.refused => {
                self.refusals.choice(&weather.refusals).copied()?
            }
            None => return None,
        };
        self.counts.add(match service {
            Service::Store => FaultKind::StoreRefused(why),
            Service::Stream => FaultKind::StreamRefused(why),
        });
        Some(why)
    }

    fn draws_fault(&mut self, permille: u32, fault: FaultKind) -> bool {
        let strikes = self.draws(permille);
        if strikes {
            self.counts.add(fault);
        }
        strikes
    }

    fn draws(&mut self, permille: u32) -> bool {
        permille > 0 && self.rng.u32(0..1_000) < permille
    }
}

/// Connection of one host to one service.
#[derive(Clone)]
pub struct HostLink {
    network: Network,
    /// Calling host.
    host: HostId,
    /// Called service.
    service: Service,
    /// Call timeout, in milliseconds of the caller's time.
    patience_ms: u64,
}

impl HostLink {
    /// Returns the calling host.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Carries one call. `serve` runs when the request arrives, if it does.
    pub async fn carry<T: Send + 'static>(
        &self,
        serve: impl FnOnce() -> T + Send + 'static,
    ) -> CallResult<T> {
        self.carry_in_two(serve, |reply| reply).await
    }

    /// Carries one call that takes the service two moments: `begin` runs when the request arrives,
    /// and `end` when the reply does.
    pub async fn carry_in_two<B: Send + 'static, T: Send + 'static>(
        &self,
        begin: impl FnOnce() -> B + Send + 'static,
        end: impl FnOnce(B) -> T + Send + 'static,
    ) -> CallResult<T> {
        self.carry_held(begin, end, 0).await
    }

    /// Carries one call whose reply the service holds back for `hold_ms`.
    pub(super) async fn carry_held<B: Send + 'static, T: Send + 'static>(
        &self,
        begin: impl FnOnce() -> B + Send + 'static,
        end: impl FnOnce(B) -> T + Send + 'static,
        hold_ms: u64,
    ) -> CallResult<T> {
        let fate = self.network.state().fate(self, self.network.clock.now_ms());
        match fate {
            CallFate::Failed { after_ms } => {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                CallResult::Failed
            }
            CallFate::Throttled { after_ms } => {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                CallResult::Throttled
            }
            CallFate::Refused { after_ms, why } => {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                CallResult::Refused(why)
            }
            CallFate::RequestLost => self.silence().await,
            CallFate::ReplyLost { there_ms } => {
                self.network.send(there_ms, Box::new(|| drop(begin())));
                self.silence().await
            }
            CallFate::Answered { there_ms, back_ms } => {
                let (answer, reply) = oneshot::channel();
                let network = self.network.clone();
                let arrive = move || {
                    let half = begin();
                    // The caller may be gone by then and the reply is dropped.
                    let back = move || drop(answer.send(end(half)));
                    network.send(hold_ms + back_ms, Box::new(back));
                };
                self.network.send(there_ms, Box::new(arrive));
                match tokio::time::timeout(self.patience(), reply).await {
                    Ok(Ok(reply)) => CallResult::Answered(reply),
                    Ok(Err(_)) | Err(_) => CallResult::Silent,
                }
            }
        }
    }

    async fn silence<T>(&self) -> CallResult<T> {
        tokio::time::sleep(self.patience()).await;
        CallResult::Silent
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}
