//! What goes wrong on request: rules that operations consult, in process and over HTTP alike.

use crate::clock::Rng;
use crate::error::{ApiError, ErrorKind};
use crate::lock;
use crate::op::Operation;
use anabranch_model::ids::ShardId;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fault, and when it strikes. What is left out matches everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The operation that it strikes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// The name of the stream that it strikes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The shard that it strikes; for `Split` and `Merge` the shard that is split or merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// How likely it strikes a call that it matches, 0 to 1.
    #[serde(default = "certain")]
    pub probability: f64,
    /// How many matching calls pass first.
    #[serde(default)]
    pub skip: u64,
    /// How often it strikes before it is spent; none is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// What happens.
    pub effect: FaultEffect,
}

fn certain() -> f64 {
    1.0
}

/// What a fault does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultEffect {
    /// The call is refused with `ProvisionedThroughputExceededException`; with a shard, only the
    /// entries of a `PutRecords` that go there.
    Throttle,
    /// Entries of a `PutRecords` fail one by one, as if their shard's rate were used up.
    ThrottleEntries,
    /// Entries of a `PutRecords` fail one by one with `InternalFailure`.
    FailEntries,
    /// The call fails with HTTP 500 and does nothing; with a shard, as `Throttle`.
    InternalError,
    /// The call is refused with `AccessDeniedException`, as without the permission.
    Deny,
    /// The call is refused with `ExpiredTokenException`, as with old credentials.
    ExpireToken,
    /// The call is refused with `UnrecognizedClientException`, as with unknown
    /// credentials, or with some that are too new to be known everywhere.
    UnknownClient,
    /// The call is refused with `KMSDisabledException`, as with a disabled encryption key.
    DisableKey,
    /// The call takes effect, and its reply is lost.
    DropReply,
    /// The call waits first. Carried out by who calls the engine, see `Engine::delay_ms`.
    Delay {
        /// How long, in milliseconds.
        ms: u64,
    },
    /// The iterator in the call has expired.
    ExpireIterator,
    /// A `GetRecords`, or the first event of a `SubscribeToShard`, says that its shard has ended,
    /// and names no children, whether it has or not.
    FalseEnd,
    /// A `ListShards` leaves out the youngest shard, as one that was read during a reshard.
    TearList,
    /// The shard is split in the middle before the call.
    Split,
    /// The shard is merged with its upper neighbour before the call.
    Merge,
}

/// A rule as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActiveRule {
    /// The rule's number.
    pub id: u64,
    /// The rule, with what is left of `skip` and `count`.
    pub rule: FaultRule,
    /// How often it struck.
    pub struck: u64,
}

/// Where a fault may strike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultSite<'a> {
    pub(crate) operation: Operation,
    pub(crate) stream: Option<&'a str>,
    /// Indexes of the shards that the call touches.
    pub(crate) shards: &'a [u32],
}

/// What becomes of a call's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyFate {
    Sent,
    Lost,
}

/// The rules that stand.
#[derive(Debug)]
pub struct Faults {
    /// How many rules there are; most engines have none, and then a call costs one load.
    standing: AtomicUsize,
    /// The rules and their chance.
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

    /// Adds a rule and gives its number.
    pub fn add(&self, rule: FaultRule) -> u64 {
        self.change(|inside| {
            let id = inside.next_id;
            inside.next_id += 1;
            inside.rules.push(ActiveRule { id, rule, struck: 0 });
            id
        })
    }

    /// Removes a rule. `false` if it does not stand.
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

    /// The rules that stand; a spent one stands until it is removed.
    pub fn list(&self) -> Vec<ActiveRule> {
        lock::lock(&self.inside).rules.clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut FaultRules) -> T) -> T {
        let mut inside = lock::lock(&self.inside);
        let result = change(&mut inside);
        self.standing.store(inside.rules.len(), Ordering::Release);
        result
    }

    /// The first effect that `pick` chooses of the rules that strike here.
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

    /// What happens to a whole call.
    pub(crate) fn before(&self, site: FaultSite<'_>) -> Result<ReplyFate, ApiError> {
        // Entries of a PutRecords fail one by one where a shard is named.
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

    /// What happens to one entry of a `PutRecords`.
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

    /// Whether the iterator in a call counts as expired.
    pub(crate) fn expires_iterator(&self, site: FaultSite<'_>) -> bool {
        let expired = |rule: &FaultRule| (rule.effect == FaultEffect::ExpireIterator).then_some(());
        self.apply(site, expired, true).is_some()
    }

    /// Whether a list leaves its youngest shard out.
    pub(crate) fn tears_list(&self, site: FaultSite<'_>) -> bool {
        let tears = |rule: &FaultRule| (rule.effect == FaultEffect::TearList).then_some(());
        self.apply(site, tears, true).is_some()
    }

    /// Whether a read says that its shard has ended.
    pub(crate) fn ends_falsely(&self, site: FaultSite<'_>) -> bool {
        let ends = |rule: &FaultRule| (rule.effect == FaultEffect::FalseEnd).then_some(());
        self.apply(site, ends, true).is_some()
    }

    /// How long a call waits first.
    pub(crate) fn delay_ms(&self, site: FaultSite<'_>) -> u64 {
        let delay = |rule: &FaultRule| match rule.effect {
            FaultEffect::Delay { ms } => Some(ms),
            _ => None,
        };
        self.apply(site, delay, true).unwrap_or(0)
    }

    /// The split or merge that happens before a call, and the shard that it names.
    pub(crate) fn reshard(&self, site: FaultSite<'_>) -> Option<(FaultEffect, Option<String>)> {
        let reshard = |rule: &FaultRule| {
            let reshards = matches!(rule.effect, FaultEffect::Split | FaultEffect::Merge);
            reshards.then(|| (rule.effect, rule.shard.clone()))
        };
        self.apply(site, reshard, false)
    }
}

impl ActiveRule {
    /// Whether the rule strikes this call, which it matches.
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

/// The error of a call that is throttled on request.
fn throttled() -> ApiError {
    ApiError::new(ErrorKind::ProvisionedThroughputExceeded, "Rate exceeded (fault on request).")
}

/// The error of a caller without the permission.
fn denied(site: FaultSite<'_>) -> ApiError {
    let (operation, stream) = (site.operation, site.stream.unwrap_or("any stream"));
    let text = format!(
        "User is not authorized to perform: kinesis:{operation} on resource: {stream} (fault on \
         request)."
    );
    ApiError::new(ErrorKind::AccessDenied, text)
}

/// The error of a caller with unknown credentials.
fn unknown_client() -> ApiError {
    let text = "The security token included in the request is invalid (fault on request).";
    ApiError::new(ErrorKind::UnrecognizedClient, text)
}

/// The error of a stream whose encryption key is disabled.
fn key_disabled() -> ApiError {
    let text = "The stream's encryption key is disabled (fault on request).";
    ApiError::new(ErrorKind::KmsDisabled, text)
}

/// The error of a caller whose credentials are too old.
fn token_expired() -> ApiError {
    let text = "The security token included in the request is expired (fault on request).";
    ApiError::new(ErrorKind::ExpiredToken, text)
}
