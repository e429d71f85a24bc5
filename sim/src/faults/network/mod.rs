//! The network between hosts and services: it carries calls, in the world's time.
//!
//! ```text
//! host ── Link::carry ──► request in flight ──► service ──► reply in flight ──► host
//!                              │                              │
//!                 lost, or after the caller gave up          lost
//! ```
//!
//! What is in flight belongs to the world, not to the host that sent it: a write lands when its
//! time comes, even if its sender crashed or stands still by then.

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

/// What hosts call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Service {
    /// Where leases are kept.
    Store,
    /// Where the records are.
    Stream,
}

/// What a host that is cut off still does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialOutage {
    /// Nothing goes through.
    Requests,
    /// Its requests arrive; no reply does.
    Replies,
}

/// The network. Clones share one.
#[derive(Clone)]
pub struct Network {
    /// The world's time.
    clock: WorldClock,
    /// All that is in flight, and what bends it.
    state: Arc<Mutex<NetworkState>>,
}

struct NetworkState {
    /// Decides the fate of each call.
    rng: Rng,
    /// Decides which reads err about the end of their shard. Apart, so that a seed with such reads
    /// has all its other faults at the calls that meet them without.
    ends: Rng,
    /// Decides which writes arrive twice, which calls are refused and which transactions become
    /// visible row by row. Each apart, for the same reason.
    repeats: Rng,
    refusals: Rng,
    commits: Rng,
    /// Decides how old the rows of a scan are, and which rows turn unreadable. Each apart, for the
    /// same reason.
    scans: Rng,
    spoils: Rng,
    /// Numbers the packets, so that two of one moment arrive in the order of their sending.
    sent: u64,
    /// What is in flight, by arrival.
    flying: BTreeMap<(u64, u64), Packet>,
    /// How bad the calls to each service are.
    weather: BTreeMap<Service, CallFaultRates>,
    /// Until when a service answers nobody.
    outages: BTreeMap<Service, u64>,
    /// Which hosts are cut off from which service.
    cuts: BTreeMap<(HostId, Service), HostOutage>,
    /// Which services refuse all calls, why, and until when.
    refusing: BTreeMap<Service, (RefusalKind, u64)>,
    /// The streams that are said to be deleted, and until when.
    hidden: BTreeMap<StreamName, u64>,
    /// Which parts of transactions are not visible yet.
    lags: PartialCommits,
    /// Which rows can't be read.
    spoiled: UnreadableRows,
    /// What rows of KCL's table were lately.
    past: RowHistory,
    /// The looks at the store that each host waits for.
    looks: BTreeMap<HostId, usize>,
    /// The lists of shards that were answered lately, and when.
    lists: Vec<(u64, (StreamName, ShardFilter), ShardList)>,
    /// What went wrong so far.
    counts: FaultCounts,
}

type Packet = Box<dyn FnOnce() + Send>;

/// A cut between a host and a service.
#[derive(Clone, Copy)]
struct HostOutage {
    /// What still goes through.
    cut: PartialOutage,
    /// When it is over.
    until_ms: u64,
    /// Which kind it counts as.
    kind: FaultKind,
    /// Whether a call has met it.
    is_met: bool,
}

/// What becomes of one call.
#[derive(Clone, Copy)]
enum CallFate {
    Answered { there_ms: u64, back_ms: u64 },
    Failed { after_ms: u64 },
    Throttled { after_ms: u64 },
    Refused { after_ms: u64, why: RefusalKind },
    RequestLost,
    ReplyLost { there_ms: u64 },
}

/// How a call ended for its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallResult<T> {
    /// With a reply.
    Answered(T),
    /// It failed, and nothing was done.
    Failed,
    /// It was throttled, and nothing was done.
    Throttled,
    /// It was refused, and nothing was done.
    Refused(RefusalKind),
    /// The caller gave up. It may have been carried out, or may still be.
    Silent,
}

impl Network {
    /// A network on which every call is answered.
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

    /// How a host reaches a service. It gives a call up after `patience_ms` of its own time.
    pub fn link(&self, host: HostId, service: Service, patience_ms: u64) -> HostLink {
        HostLink { network: self.clone(), host, service, patience_ms }
    }

    /// From now on calls to `service` fare like this.
    pub fn set_weather(&self, service: Service, weather: CallFaultRates) {
        self.state().weather.insert(service, weather);
    }

    /// The service answers nobody for a while.
    pub fn outage(&self, service: Service, for_ms: u64) {
        let until = self.clock.now_ms() + for_ms;
        self.state().outages.insert(service, until);
    }

    /// The host is cut off from both services for a while.
    pub fn cut(&self, host: HostId, cut: PartialOutage, for_ms: u64) {
        let until_ms = self.clock.now_ms() + for_ms;
        let severed = HostOutage { cut, until_ms, kind: FaultKind::Cut, is_met: false };
        let mut state = self.state();
        state.cuts.insert((host, Service::Store), severed);
        state.cuts.insert((host, Service::Stream), severed);
    }

    /// The host is cut off from one service for a while.
    pub fn cut_from(&self, host: HostId, service: Service, cut: PartialOutage, for_ms: u64) {
        let kind = match service {
            Service::Store => FaultKind::StoreCut,
            Service::Stream => FaultKind::StreamCut,
        };
        let until_ms = self.clock.now_ms() + for_ms;
        let severed = HostOutage { cut, until_ms, kind, is_met: false };
        self.state().cuts.insert((host, service), severed);
    }

    /// The service refuses all calls for a while.
    pub fn refuse(&self, service: Service, why: RefusalKind, for_ms: u64) {
        let until_ms = self.clock.now_ms() + for_ms;
        self.state().refusing.insert(service, (why, until_ms));
    }

    /// The service says for a while that a stream does not exist.
    pub fn hide(&self, stream: &StreamName, for_ms: u64) {
        let until_ms = self.clock.now_ms() + for_ms;
        self.state().hidden.insert(stream.clone(), until_ms);
    }

    /// The sky clears: outages, cuts and refusals are over, every row can be read, and every call is
    /// answered. What is in flight stays in flight. A store whose transactions become visible row by
    /// row stays one, and so does one whose scans are old.
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

    /// What went wrong so far.
    pub fn counts(&self) -> FaultCounts {
        self.state().counts.clone()
    }

    /// Whether a host waits for a look at the store.
    pub(crate) fn looks(&self, host: HostId) -> bool {
        self.state().looks.get(&host).is_some_and(|calls| *calls > 0)
    }

    /// Lets everything arrive whose time has come, in order.
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
        // A world whose checker panicked is over; its network is only read.
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

    /// Counts a cut at the first call that meets it, at whichever service.
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

/// How one host reaches one service.
#[derive(Clone)]
pub struct HostLink {
    /// What carries the calls.
    network: Network,
    /// Who calls.
    host: HostId,
    /// What is called.
    service: Service,
    /// When the caller gives up, in its own time.
    patience_ms: u64,
}

impl HostLink {
    /// Which host calls.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Carries one call: `serve` runs when the request arrives, if it does.
    pub async fn carry<T: Send + 'static>(
        &self,
        serve: impl FnOnce() -> T + Send + 'static,
    ) -> CallResult<T> {
        self.carry_in_two(serve, |reply| reply).await
    }

    /// Carries one call that the service needs two moments for: `begin` runs when the request
    /// arrives, and `end` when the reply does.
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
                    // The caller may be gone by then: a reply to nobody.
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
