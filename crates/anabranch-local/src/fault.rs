//! Fault injection: rules that operations consult, in process and over HTTP alike.

use crate::clock::Rng;
use crate::error::{ApiError, ErrorKind};
use crate::lock;
use crate::op::Operation;
use anabranch_model::ids::ShardId;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fault, and the calls that it applies to. An omitted field matches everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The operation to match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// The name of the stream to match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The id of the shard to match. For `Split` and `Merge`, the shard that is split or merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// Probability that a matching call is hit, 0 to 1. Default: 1.
    #[serde(default = "certain")]
    pub probability: f64,
    /// Number of matching calls that pass first. Default: 0.
    #[serde(default)]
    pub skip: u64,
    /// Number of hits after which the rule no longer applies. `None`: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The effect on a call that is hit.
    pub effect: FaultEffect,
}

fn certain() -> f64 {
    1.0
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultEffect {
    /// The call is refused with `ProvisionedThroughputExceededException`. If the rule names a
    /// shard, a `PutRecords` is not refused, but its entries for that shard fail.
    Throttle,
    /// Entries of a `PutRecords` fail one by one, as if their shard's rate were used up.
    ThrottleEntries,
    /// Entries of a `PutRecords` fail one by one with `InternalFailure`.
    FailEntries,
    /// The call fails with HTTP 500 and does nothing. If the rule names a shard, a `PutRecords`
    /// fails as with `Throttle`.
    InternalError,
    /// The call is refused with `AccessDeniedException`, as without the permission.
    Deny,
    /// The call is refused with `ExpiredTokenException`, as with old credentials.
    ExpireToken,
    /// The call is refused with `UnrecognizedClientException`, as with unknown credentials, or with
    /// credentials too new to be known everywhere.
    UnknownClient,
    /// The call is refused with `KMSDisabledException`, as with a disabled encryption key.
    DisableKey,
    /// The call takes effect, but its reply is lost.
    DropReply,
    /// The call is delayed. The caller of the engine carries this out, see `Engine::delay_ms`.
    Delay {
        /// The delay, in milliseconds.
        ms: u64,
    },
    /// The iterator in the call counts as expired.
    ExpireIterator,
    /// A `GetRecords`, or the first event of a `SubscribeToShard`, reports the end of its shard
    /// without children, even if the shard is open.
    FalseEnd,
    /// A `ListShards` omits the youngest shard, like a list that was read during a reshard.
    TearList,
    /// The shard is split in the middle before the call.
    Split,
    /// The shard is merged with its upper neighbour before the call.
    Merge,
}

/// A rule that has been added, with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActiveRule {
    /// The rule's number.
    pub id: u64,
    /// The rule, with the remaining `skip` and `count`.
    pub rule: FaultRule,
    /// Number of hits so far.
    pub struck: u64,
}

/// A call as rules match it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultSite<'a> {
    pub(crate) operation: Operation,
    pub(crate) stream: Option<&'a str>,
    /// Indexes of the shards that the call touches.
    pub(crate) shards: &'a [u32],
}

/// Fate of a call's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyFate {
    Sent,
    Lost,
}

/// The rules in force.
#[derive(Debug)]
pub struct Faults {
    /// Number of rules. Most engines have none, and then a call costs one atomic load.
    standing: AtomicUsize,
    inside: Mutex<FaultRules>,
}

#[derive(Debug)]
struct FaultRules {
    rules: Vec<ActiveRule>,
    next_id: u64,
    dice: Rng,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        let inside = FaultRules { rules: Vec::new(), next_id: 1, dice: Rng::seeded(seed) };
        Self { standing: AtomicUsize::new(0), inside: Mutex::new(inside) }
    }

    /// Adds a rule and returns its number.
    pub fn add(&self, rule: FaultRule) -> u64 {
        self.change(|inside| {
            let id = inside.next_id;
            inside.next_id += 1;
            inside.rules.push(ActiveRule { id, rule, struck: 0 });
            id
        })
    }

    /// Removes a rule. Returns `false` if there is no such rule.
    pub fn remove(&self, id: u64) -> bool {
        self.change(|inside| {
            let before = inside.rules.len();
            inside.rules.retain(|rule| rule.id != id);
            inside.rules.len() < before
        })
    }

    /// Removes every rule.
    pub fn clear(&self) {
        self.change(|inside| inside.rules.clear());
    }

    /// Returns all rules, including used-up ones, which stay until they are removed.
    pub fn list(&self) -> Vec<ActiveRule> {
        lock::lock(&self.inside).rules.clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut FaultRules) -> T) -> T {
        let mut inside = lock::lock(&self.inside);
        let result = change(&mut inside);
        self.standing.store(inside.rules.len(), Ordering::Release);
        result
    }

    /// Returns the effect that `pick` extracts from the first rule that hits this call.
    fn apply<T>(
        &self,
        site: FaultSite<'_>,
        pick: impl Fn(&FaultRule) -> Option<T>,
        by_shard: bool,
    ) -> Option<T> {
        if self.standing.load(Ordering::Acquire) == 0 {
            return None;
        }
        let inside = &mut *lock::lock(&self.inside);
        for standing in &mut inside.rules {
            let Some(picked) = pick(&standing.rule) else { continue };
            if matches(&standing.rule, site, by_shard) && standing.applies(&mut inside.dice) {
                return Some(picked);
            }
        }
        None
    }

    /// Decides what happens to a whole call: an error, or the fate of its reply.
    pub(crate) fn before(&self, site: FaultSite<'_>) -> Result<ReplyFate, ApiError> {
        // A rule with a shard fails single entries of a `PutRecords` instead.
        let whole =
            |rule: &FaultRule| site.operation != Operation::PutRecords || rule.shard.is_none();
        let refused = |rule: &FaultRule| match rule.effect {
            FaultEffect::Throttle if whole(rule) => Some(throttled()),
            FaultEffect::InternalError if whole(rule) => Some(ApiError::internal()),
            FaultEffect::Deny => Some(denied(site)),
            FaultEffect::ExpireToken => Some(token_expired()),
            FaultEffect::UnknownClient => Some(unknown_client()),
            FaultEffect::DisableKey => Some(key_disabled()),
            _ => None,
        };
        if let Some(error) = self.apply(site, refused, true) {
            return Err(error);
        }
        let lost = |rule: &FaultRule| (rule.effect == FaultEffect::DropReply).then_some(());
        let lost = self.apply(site, lost, true).is_some();
        Ok(if lost { ReplyFate::Lost } else { ReplyFate::Sent })
    }

    /// Returns the error for one entry of a `PutRecords`, if a rule hits it.
    pub(crate) fn entry(&self, site: FaultSite<'_>) -> Option<ErrorKind> {
        let failed = |rule: &FaultRule| match rule.effect {
            FaultEffect::ThrottleEntries => Some(ErrorKind::ProvisionedThroughputExceeded),
            FaultEffect::FailEntries => Some(ErrorKind::InternalFailure),
            FaultEffect::Throttle if rule.shard.is_some() => {
                Some(ErrorKind::ProvisionedThroughputExceeded)
            }
            FaultEffect::InternalError if rule.shard.is_some() => Some(ErrorKind::InternalFailure),
            _ => None,
        };
        self.apply(site, failed, true)
    }

    /// Returns true if the iterator in a call counts as expired.
    pub(crate) fn expires_iterator(&self, site: FaultSite<'_>) -> bool {
        let expired = |rule: &FaultRule| (rule.effect == FaultEffect::ExpireIterator).then_some(());
        self.apply(site, expired, true).is_some()
    }

    /// Returns true if a list omits its youngest shard.
    pub(crate) fn tears_list(&self, site: FaultSite<'_>) -> bool {
        let tears = |rule: &FaultRule| (rule.effect == FaultEffect::TearList).then_some(());
        self.apply(site, tears, true).is_some()
    }

    /// Returns true if a read falsely reports the end of its shard.
    pub(crate) fn ends_falsely(&self, site: FaultSite<'_>) -> bool {
        let ends = |rule: &FaultRule| (rule.effect == FaultEffect::FalseEnd).then_some(());
        self.apply(site, ends, true).is_some()
    }

    /// Returns the delay of a call, in milliseconds.
    pub(crate) fn delay_ms(&self, site: FaultSite<'_>) -> u64 {
        let delay = |rule: &FaultRule| match rule.effect {
            FaultEffect::Delay { ms } => Some(ms),
            _ => None,
        };
        self.apply(site, delay, true).unwrap_or(0)
    }

    /// Returns the split or merge to do before a call, and the shard that the rule names.
    pub(crate) fn reshard(&self, site: FaultSite<'_>) -> Option<(FaultEffect, Option<String>)> {
        let reshard = |rule: &FaultRule| {
            let reshards = matches!(rule.effect, FaultEffect::Split | FaultEffect::Merge);
            reshards.then(|| (rule.effect, rule.shard.clone()))
        };
        self.apply(site, reshard, false)
    }
}

impl ActiveRule {
    /// Returns true if the rule hits this call, which matches it. Updates `skip`, `count` and the
    /// number of hits.
    fn applies(&mut self, dice: &mut Rng) -> bool {
        if self.rule.count == Some(0) {
            return false;
        }
        if self.rule.skip > 0 {
            self.rule.skip -= 1;
            return false;
        }
        if !dice.chance(self.rule.probability) {
            return false;
        }
        self.rule.count = self.rule.count.map(|left| left - 1);
        self.struck += 1;
        true
    }
}

fn matches(rule: &FaultRule, site: FaultSite<'_>, by_shard: bool) -> bool {
    let operation = rule.operation.is_none_or(|operation| operation == site.operation);
    let stream = rule.stream.as_deref().is_none_or(|stream| site.stream == Some(stream));
    let shard = !by_shard
        || rule.shard.as_deref().is_none_or(|shard| {
            ShardId::from(shard).index().is_some_and(|index| site.shards.contains(&index))
        });
    operation && stream && shard
}

/// Returns the error of a call that is throttled on request.
fn throttled() -> ApiError {
    ApiError::new(ErrorKind::ProvisionedThroughputExceeded, "Rate exceeded (fault on request).")
}

/// Returns the error of a caller without the permission.
fn denied(site: FaultSite<'_>) -> ApiError {
    let (operation, stream) = (site.operation, site.stream.unwrap_or("any stream"));
    let text = format!(
        "User is not authorized to perform: kinesis:{operation} on resource: {stream} (fault on \
         request)."
    );
    ApiError::new(ErrorKind::AccessDenied, text)
}

/// Returns the error of a caller with unknown credentials.
fn unknown_client() -> ApiError {
    let text = "The security token included in the request is invalid (fault on request).";
    ApiError::new(ErrorKind::UnrecognizedClient, text)
}

/// Returns the error of a stream whose encryption key is disabled.
fn key_disabled() -> ApiError {
    let text = "The stream's encryption key is disabled (fault on request).";
    ApiError::new(ErrorKind::KmsDisabled, text)
}

/// Returns the error of a caller whose credentials are too old.
fn token_expired() -> ApiError {
    let text = "The security token included in the request is expired (fault on request).";
    ApiError::new(ErrorKind::ExpiredToken, text)
}
