//! Periods in which a stream refuses puts: missing permissions, credentials or the encryption key.

use anabranch_local::fault::{FaultEffect, FaultRule, Faults};
use anabranch_local::op::Operation;
use fastrand::Rng;

/// Maximum duration of one period, in milliseconds.
const DENIAL_MS: u64 = 8_000;
const EFFECTS: [FaultEffect; 4] = [
    FaultEffect::Deny,
    FaultEffect::DisableKey,
    FaultEffect::UnknownClient,
    FaultEffect::ExpireToken,
];

/// Schedule of the periods in which a stream refuses the caller.
#[derive(Debug)]
pub struct DenialSchedule {
    rng: Rng,
    /// Upper bound of the random pause from the end of one period to the start of the next. `None`:
    /// no periods at all.
    pause_ms: Option<u64>,
    /// Active rules, and when they are removed.
    standing: Option<([u64; 2], u64)>,
    /// Start of the next period.
    next_ms: u64,
}

impl DenialSchedule {
    /// Draws whether and how often a stream refuses its callers.
    pub fn drawn(mut rng: Rng) -> Self {
        let pause_ms = (rng.u32(0..3) > 0).then(|| rng.u64(4_000..30_000));
        let next_ms = rng.u64(0..DENIAL_MS);
        Self { rng, pause_ms, standing: None, next_ms }
    }

    /// Starts or ends a period if it is due. Returns a description of the change.
    pub fn step(&mut self, faults: &Faults, now_ms: u64) -> Option<String> {
        let pause_ms = self.pause_ms?;
        match self.standing {
            Some((rules, until_ms)) if until_ms <= now_ms => {
                for rule in rules {
                    faults.remove(rule);
                }
                self.standing = None;
                self.next_ms = now_ms + self.rng.u64(0..pause_ms);
                Some("the stream lets producers in again".to_owned())
            }
            None if self.next_ms <= now_ms => {
                let effect = EFFECTS[self.rng.usize(0..EFFECTS.len())];
                // A service's hosts do not all learn a permission change at once.
                let probability = if self.rng.bool() { 1.0 } else { self.rng.f64() };
                let rules = [Operation::PutRecords, Operation::PutRecord].map(|operation| {
                    faults.add(FaultRule {
                        operation: Some(operation),
                        stream: None,
                        shard: None,
                        probability,
                        skip: 0,
                        count: None,
                        effect,
                    })
                });
                self.standing = Some((rules, now_ms + self.rng.u64(0..DENIAL_MS)));
                Some(format!("the stream refuses producers: {effect:?}, {probability:.2}"))
            }
            _ => None,
        }
    }
}
