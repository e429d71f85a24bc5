//! Faults of hosts and of whole services.

use super::network::{Network, PartialOutage, Service};
use super::refusal::RefusalKind;
use crate::history::HostId;
use fastrand::Rng;
use std::ops::RangeInclusive;

/// Rates of host and service faults, as the mean time between two, and their durations. `None`
/// means never.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFaultRates {
    /// Host crashes.
    pub crash_every_ms: Option<u64>,
    /// Host freezes.
    pub freeze_every_ms: Option<u64>,
    /// Requests to stop a host.
    pub stop_every_ms: Option<u64>,
    /// Cuts between a host and both services.
    pub cut_every_ms: Option<u64>,
    /// Outages of the store.
    pub outage_every_ms: Option<u64>,
    /// Outages of the stream.
    pub drought_every_ms: Option<u64>,
    /// Cuts between a host and the store alone.
    pub store_cut_every_ms: Option<u64>,
    /// Cuts between a host and the stream alone.
    pub stream_cut_every_ms: Option<u64>,
    /// Host pauses: the host and its clock stop.
    pub pause_every_ms: Option<u64>,
    /// Periods in which the store refuses all calls for one reason.
    pub store_refuses_every_ms: Option<u64>,
    /// Periods in which the stream refuses all calls for one reason.
    pub stream_refuses_every_ms: Option<u64>,
    /// Duration of half of the crashes, freezes, cuts and outages.
    pub lasts_ms: RangeInclusive<u64>,
    /// Duration of the other half.
    pub or_lasts_ms: RangeInclusive<u64>,
}

/// A fault of one host. Durations are in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostFault {
    /// The host crashes, and starts again after this time.
    Crash(HostId, u64),
    /// The host freezes for this time.
    Freeze(HostId, u64),
    /// The host freezes for this time, and so does its clock.
    Pause(HostId, u64),
    /// The host freezes for this time, starting when it next waits for a store poll. The poll's
    /// result is old when the host resumes.
    FreezeWhilePolling(HostId, u64),
    /// The host is asked to stop, and starts again this long afterwards.
    Stop(HostId, u64),
}

/// Returns durations from shortly before the lease time to just after it.
fn near(lease_time_ms: u64) -> RangeInclusive<u64> {
    lease_time_ms * 70 / 100..=lease_time_ms * 102 / 100
}

impl HostFaultRates {
    /// Returns rates without faults.
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

    /// Draws random rates with some faults present and others absent, each about every few lease
    /// times. Half of them last up to three lease times. The other half end shortly before or just
    /// after the lease time, which is where an owner and its observer can disagree.
    pub fn random(rng: &mut Rng, lease_time_ms: u64) -> Self {
        // A frozen observer with old data is the rarest hazard, so a third of the seeds have
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

    /// Like [`HostFaultRates::random`], with possible outages of the stream.
    pub fn random_with_stream(rng: &mut Rng, lease_time_ms: u64) -> Self {
        let drought_every_ms = rng.bool().then(|| lease_time_ms * rng.u64(3..20));
        Self { drought_every_ms, ..Self::random(rng, lease_time_ms) }
    }

    /// Adds cuts between a host and one of the two services. Uses its own RNG, so that the rest of
    /// the seed is unchanged.
    #[must_use]
    pub fn with_lone_cuts(self, seed: u64, lease_time_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x6c6f_6e65_6375_7473);
        let mut often = || (rng.u32(0..3) == 0).then(|| lease_time_ms * rng.u64(1..10));
        let (store_cut_every_ms, stream_cut_every_ms) = (often(), often());
        let lasts_ms = self.lasts_or(lease_time_ms);
        let or_lasts_ms = near(lease_time_ms);
        Self { store_cut_every_ms, stream_cut_every_ms, lasts_ms, or_lasts_ms, ..self }
    }

    /// Adds host pauses, in which the clock stops as well. Uses its own RNG.
    #[must_use]
    pub fn with_pauses(self, seed: u64, lease_time_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7061_7573_6573_0000);
        let pause_every_ms = (rng.u32(0..3) == 0).then(|| lease_time_ms * rng.u64(1..10));
        let (lasts_ms, or_lasts_ms) = (self.lasts_or(lease_time_ms), near(lease_time_ms));
        Self { pause_every_ms, lasts_ms, or_lasts_ms, ..self }
    }

    /// Adds periods in which a service refuses all calls. Uses its own RNG.
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

    /// Draws the host faults of the next `step_ms`. Cuts and outages are applied to the network at
    /// once. Newer kinds of faults draw from `apart`, so that a seed without them is unchanged.
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
