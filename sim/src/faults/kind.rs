//! The kinds of faults, and how often each was injected.

use super::refusal::RefusalKind;
use std::collections::BTreeMap;
use std::fmt;

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// A call failed at once; nothing was done.
    Error,
    /// A call was throttled; nothing was done.
    Throttle,
    /// A stream began to refuse its callers, or ceased to.
    Denied,
    /// A call took far longer than usual, and was answered.
    Slow,
    /// A request never arrived.
    RequestLost,
    /// A request was carried out, and its reply never arrived.
    ReplyLost,
    /// A request was carried out after its caller had given up.
    Late,
    /// A list mixed rows of two moments that differ.
    TornList,
    /// A list of shards showed what was true a while ago, and is not now.
    StaleList,
    /// An iterator was refused as too old.
    Expired,
    /// A read said that its shard has ended and named no children, whether it has or not.
    FalseEnd,
    /// A call met an outage of the whole store.
    Outage,
    /// A call met an outage of the whole stream service.
    StreamOutage,
    /// A cut between a host and the services that a call met.
    Cut,
    /// A cut between a host and the store alone that a call met.
    StoreCut,
    /// A cut between a host and the stream alone that a call met.
    StreamCut,
    /// A request arrived twice.
    Twice,
    /// A transaction of the store became visible row by row.
    SlowCommit,
    /// A scan showed rows as they were some moments ago.
    OldScan,
    /// A row of the store could not be read for a while.
    UnreadableRow,
    /// A call was answered as if its stream had been deleted.
    HiddenStream,
    /// The store refused a call for good.
    StoreRefused(RefusalKind),
    /// The stream refused a call for good.
    StreamRefused(RefusalKind),
    /// A host died.
    Crash,
    /// A host stood still, and came back.
    Freeze,
    /// A handler blocked the thread of its host.
    Blocked,
    /// A worker began with a lease time of its own.
    LeaseTime,
    /// A host stood still and its clock with it, and came back.
    Pause,
    /// A host was asked to stop.
    Stop,
    /// A shard was split.
    Split,
    /// Two shards were merged.
    Merge,
    /// Retention passed for all records.
    Trim,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "errors",
            Self::Throttle => "throttles",
            Self::Denied => "changes of access",
            Self::Slow => "slow calls",
            Self::RequestLost => "lost requests",
            Self::ReplyLost => "lost replies",
            Self::Late => "applied late",
            Self::TornList => "torn lists",
            Self::StaleList => "stale lists",
            Self::Expired => "expired iterators",
            Self::FalseEnd => "false ends",
            Self::Outage => "met an outage of the store",
            Self::StreamOutage => "met an outage of the stream",
            Self::Cut => "cuts",
            Self::StoreCut => "cuts from the store",
            Self::StreamCut => "cuts from the stream",
            Self::Twice => "requests that arrived twice",
            Self::SlowCommit => "transactions that were visible in parts",
            Self::OldScan => "old scans",
            Self::HiddenStream => "calls to a stream that was said to be deleted",
            Self::UnreadableRow => "rows that could not be read for a while",
            Self::StoreRefused(why) => return f.pad(&format!("refused by the store: {why}")),
            Self::StreamRefused(why) => return f.pad(&format!("refused by the stream: {why}")),
            Self::Crash => "crashes",
            Self::Freeze => "freezes",
            Self::Blocked => "handlers that blocked their thread",
            Self::LeaseTime => "lives with another lease time",
            Self::Pause => "pauses of a host and its clock",
            Self::Stop => "stops",
            Self::Split => "splits",
            Self::Merge => "merges",
            Self::Trim => "trims",
        })
    }
}

/// How often each kind of fault was injected.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts(BTreeMap<FaultKind, u64>);

impl FaultCounts {
    /// Counts one.
    pub fn add(&mut self, fault: FaultKind) {
        *self.0.entry(fault).or_default() += 1;
    }

    /// How often this one was injected.
    pub fn of(&self, fault: FaultKind) -> u64 {
        self.0.get(&fault).copied().unwrap_or(0)
    }

    /// Adds all of another count.
    pub fn merge(&mut self, other: &Self) {
        for (fault, count) in &other.0 {
            *self.0.entry(*fault).or_default() += count;
        }
    }

    /// Each kind that was injected, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        self.0.iter().map(|(fault, count)| (*fault, *count))
    }
}
