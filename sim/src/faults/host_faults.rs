//! What befalls hosts and whole services while faults last.

use super::network::{Network, PartialOutage, Service};
use super::refusal::RefusalKind;
use crate::history::HostId;
use fastrand::Rng;
use std::ops::RangeInclusive;

/// How often things befall the fleet, each as the mean time between two, and how long they last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFaultRates {
    /// A host dies.
    pub crash_every_ms: Option<u64>,
    /// A host stands still.
    pub freeze_every_ms: Option<u64>,
    /// A host is asked to stop.
    pub stop_every_ms: Option<u64>,
    /// A host is cut off.
    pub cut_every_ms: Option<u64>,
    /// The store answers nobody.
    pub outage_every_ms: Option<u64>,
    /// The stream answers nobody.
    pub drought_every_ms: Option<u64>,
    /// A host is cut off from the store alone.
    pub store_cut_every_ms: Option<u64>,
    /// A host is cut off from the stream alone.
    pub stream_cut_every_ms: Option<u64>,
    /// A host stands still and its clock with it.
    pub pause_every_ms: Option<u64>,
    /// The store refuses all calls for one reason.
    pub store_refuses_every_ms: Option<u64>,
    /// The stream refuses all calls for one reason.
    pub stream_refuses_every_ms: Option<u64>,
    /// How long half of the crashes, freezes, cuts and outages last.
    pub lasts_ms: RangeInclusive<u64>,
    /// How long the other half lasts.
    pub or_lasts_ms: RangeInclusive<u64>,
}

/// One thing that befalls the fleet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostFault {
    /// The host dies, and comes back after a while.
    Crash(HostId, u64),
    /// The host stands still for a while.
    Freeze(HostId, u64),
    /// The host stands still for a while, and so does its clock.
    Pause(HostId, u64),
    /// The host stands still for a while, from the moment on at which it waits for a look at the
    /// store: what it sees when it goes on is old.
    FreezeWhilePolling(HostId, u64),
    /// The host is asked to stop, and comes back a while after it did.
    Stop(HostId, u64),
}

/// Shortly before the lease time is over, or just after.
fn near(lease_time_ms: u64) -> RangeInclusive<u64> {
    lease_time_ms * 70 / 100..=lease_time_ms * 102 / 100
}

impl HostFaultRates {
    /// Nothing happens.
    pub fn none() -> Self {
        Self {
            crash_every_ms: None,
            freeze_every_ms: None,
            stop_every_ms: None,
            cut_every_ms: None,
            outage_every_ms: None,
            drought_every_ms: None,
            store_cut_every_ms: None,
            stream_cut_every_ms: None,
            pause_every_ms: None,
            store_refuses_every_ms: None,
            stream_refuses_every_ms: None,
            lasts_ms: 1..=1,
            or_lasts_ms: 1..=1,
        }
    }

    /// Some things happen and others don't, about every few lease times. Half of them last from a
    /// moment to three lease times. The other half end shortly before the lease time does, or just
    /// after: that is where an owner and its watcher can come to differ.
    pub fn random(rng: &mut Rng, lease_time_ms: u64) -> Self {
        // Old news in the hands of a watcher is the rarest danger, so a third of the seeds has
        // nothing else.
        if rng.u32(0..3) == 0 {
            return Self {
                freeze_every_ms: Some(lease_time_ms * rng.u64(2..6) / 4),
                lasts_ms: lease_time_ms / 20..=lease_time_ms * 2,
                or_lasts_ms: near(lease_time_ms),
                ..Self::none()
            };
        }
        let freeze = rng.bool().then(|| lease_time_ms * rng.u64(1..5));
        let mut often = || rng.bool().then(|| lease_time_ms * rng.u64(1..10));
        Self {
            crash_every_ms: often(),
            freeze_every_ms: freeze,
            stop_every_ms: often(),
            cut_every_ms: often(),
            outage_every_ms: often().map(|every| every * 3),
            lasts_ms: lease_time_ms / 20..=lease_time_ms * 3,
            or_lasts_ms: near(lease_time_ms),
            ..Self::none()
        }
    }

    /// As [`HostFaultRates::random`], and the stream may be out too.
    pub fn random_with_stream(rng: &mut Rng, lease_time_ms: u64) -> Self {
        let drought_every_ms = rng.bool().then(|| lease_time_ms * rng.u64(3..20));
        Self { drought_every_ms, ..Self::random(rng, lease_time_ms) }
    }

    /// The same, and hosts may be cut off from one of the two services. Drawn apart, so that the
    /// rest of the seed is what it is without.
    #[must_use]
    pub fn with_lone_cuts(self, seed: u64, lease_time_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x6c6f_6e65_6375_7473);
        let mut often = || (rng.u32(0..3) == 0).then(|| lease_time_ms * rng.u64(1..10));
        let (store_cut_every_ms, stream_cut_every_ms) = (often(), often());
        let lasts_ms = self.lasts_or(lease_time_ms);
        let or_lasts_ms = near(lease_time_ms);
        Self { store_cut_every_ms, stream_cut_every_ms, lasts_ms, or_lasts_ms, ..self }
    }

    /// The same, and hosts may stand still with their clocks. Drawn apart.
    #[must_use]
    pub fn with_pauses(self, seed: u64, lease_time_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7061_7573_6573_0000);
        let pause_every_ms = (rng.u32(0..3) == 0).then(|| lease_time_ms * rng.u64(1..10));
        let (lasts_ms, or_lasts_ms) = (self.lasts_or(lease_time_ms), near(lease_time_ms));
        Self { pause_every_ms, lasts_ms, or_lasts_ms, ..self }
    }

    /// The same, and a service may refuse everything for a while. Drawn apart.
    #[must_use]
    pub fn with_refusals(self, seed: u64, lease_time_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7265_6675_7361_6c73);
        let mut often = || (rng.u32(0..4) == 0).then(|| lease_time_ms * rng.u64(3..15));
        let (store_refuses_every_ms, stream_refuses_every_ms) = (often(), often());
        let (lasts_ms, or_lasts_ms) = (self.lasts_or(lease_time_ms), near(lease_time_ms));
        Self { store_refuses_every_ms, stream_refuses_every_ms, lasts_ms, or_lasts_ms, ..self }
    }

    fn lasts_or(&self, lease_time_ms: u64) -> RangeInclusive<u64> {
        if *self.lasts_ms.end() > 1 {
            return self.lasts_ms.clone();
        }
        lease_time_ms / 20..=lease_time_ms * 3
    }

    fn lasts(&self, rng: &mut Rng) -> u64 {
        let range = if rng.bool() { &self.lasts_ms } else { &self.or_lasts_ms };
        rng.u64(range.clone())
    }

    /// What befalls hosts within the next `step_ms`. Cuts and outages go to the network at once.
    /// The newer kinds draw from `apart`, so that a seed without them keeps its story.
    pub(crate) fn draw(
        &self,
        rng: &mut Rng,
        apart: &mut Rng,
        step_ms: u64,
        hosts: usize,
        network: &Network,
        note: impl Fn(String),
    ) -> Vec<HostFault> {
        let mut blows = Vec::new();
        let hits = |rng: &mut Rng, every: Option<u64>| {
            every.is_some_and(|every| rng.u64(0..every.max(1)) < step_ms)
        };
        let host = |rng: &mut Rng| HostId(rng.usize(0..hosts));
        let lasts = |rng: &mut Rng| self.lasts(rng);
        if hits(rng, self.crash_every_ms) {
            blows.push(HostFault::Crash(host(rng), lasts(rng)));
        }
        if hits(rng, self.freeze_every_ms) {
            let host = host(rng);
            blows.push(if rng.u32(0..3) == 0 {
                HostFault::Freeze(host, lasts(rng))
            } else {
                HostFault::FreezeWhilePolling(host, rng.u64(self.or_lasts_ms.clone()))
            });
        }
        if hits(rng, self.stop_every_ms) {
            blows.push(HostFault::Stop(host(rng), lasts(rng)));
        }
        if hits(rng, self.cut_every_ms) {
            let cut = if rng.bool() { PartialOutage::Requests } else { PartialOutage::Replies };
            let (host, for_ms) = (host(rng), lasts(rng));
            note(format!("cuts {host} off for {for_ms} ms ({cut:?})"));
            network.cut(host, cut, for_ms);
        }
        if hits(rng, self.outage_every_ms) {
            let for_ms = lasts(rng);
            note(format!("store outage for {for_ms} ms"));
            network.outage(Service::Store, for_ms);
        }
        if hits(rng, self.drought_every_ms) {
            let for_ms = lasts(rng);
            note(format!("stream outage for {for_ms} ms"));
            network.outage(Service::Stream, for_ms);
        }
        for (service, cut_every_ms, refuses_every_ms) in [
            (Service::Store, self.store_cut_every_ms, self.store_refuses_every_ms),
            (Service::Stream, self.stream_cut_every_ms, self.stream_refuses_every_ms),
        ] {
            if hits(apart, cut_every_ms) {
                let cut =
                    if apart.bool() { PartialOutage::Requests } else { PartialOutage::Replies };
                let (host, for_ms) = (host(apart), lasts(apart));
                note(format!("cuts {host} off from the {service:?} for {for_ms} ms ({cut:?})"));
                network.cut_from(host, service, cut, for_ms);
            }
            if hits(apart, refuses_every_ms) {
                let all = RefusalKind::of(service);
                let (why, for_ms) = (all[apart.usize(0..all.len())], lasts(apart));
                note(format!("the {service:?} refuses all calls for {for_ms} ms: {why}"));
                network.refuse(service, why, for_ms);
            }
        }
        if hits(apart, self.pause_every_ms) {
            blows.push(HostFault::Pause(host(apart), lasts(apart)));
        }
        blows
    }
}
