//! Times in which a stream refuses the caller of puts: permissions, credentials, the encryption key.

use anabranch_local::fault::{FaultEffect, FaultRule, Faults};
use anabranch_local::op::Operation;
use fastrand::Rng;

/// How long one lasts, at the most.
const DENIAL_MS: u64 = 8_000;
const EFFECTS: [FaultEffect; 4] = [
    FaultEffect::Deny,
    FaultEffect::DisableKey,
    FaultEffect::UnknownClient,
    FaultEffect::ExpireToken,
];

/// When a stream refuses the caller.
#[derive(Debug)]
pub struct DenialSchedule {
    rng: Rng,
    /// From the end of one to the next, half of it on average less. Without it there are none.
    pause_ms: Option<u64>,
    /// The rules that stand, and when they go.
    standing: Option<([u64; 2], u64)>,
    /// When the next one begins.
    next_ms: u64,
}

impl DenialSchedule {
    /// Draws how often a stream refuses its callers, if it does.
    pub fn drawn(mut rng: Rng) -> Self {
        let pause_ms = (rng.u32(0..3) > 0).then(|| rng.u64(4_000..30_000));
        let next_ms = rng.u64(0..DENIAL_MS);
        Self { rng, pause_ms, standing: None, next_ms }
    }

    /// Begins or ends one, if it is time, and says so.
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
                // Not every host of a service knows at once what is allowed.
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
