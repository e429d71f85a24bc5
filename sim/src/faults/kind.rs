//! The kinds of faults, and how often each was injected.

use super::refusal::RefusalKind;
use std::collections::BTreeMap;
use std::fmt;

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// A call failed at once without effect.
    Error,
    /// A call was throttled without effect.
    Throttle,
    /// A stream began or ceased to refuse its callers.
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
    /// A list of shards showed an earlier state.
    StaleList,
    /// An iterator was refused as too old.
    Expired,
    /// A read reported the end of its shard without children, true or not.
    FalseEnd,
    /// A call met an outage of the whole store.
    Outage,
    /// A call met an outage of the whole stream service.
    StreamOutage,
    /// A call met a cut between a host and both services.
    Cut,
    /// A call met a cut between a host and the store alone.
    StoreCut,
    /// A call met a cut between a host and the stream alone.
    StreamCut,
    /// A request arrived twice.
    Twice,
    /// A transaction of the store became visible row by row.
    SlowCommit,
    /// A scan showed rows of an earlier moment.
    OldScan,
    /// A row of the store was unreadable for a while.
    UnreadableRow,
    /// A call was answered as if its stream had been deleted.
    HiddenStream,
    /// The store permanently refused a call.
    StoreRefused(RefusalKind),
    /// The stream permanently refused a call.
    StreamRefused(RefusalKind),
    /// A host crashed.
    Crash,
    /// A host froze, and resumed.
    Freeze,
    /// A handler blocked the thread of its host.
    Blocked,
    /// A worker started with a different lease time.
    LeaseTime,
    /// A host and its clock stopped, and resumed.
    Pause,
    /// A host was asked to stop.
    Stop,
    /// A shard was split.
    Split,
    /// Two shards were merged.
    Merge,
    /// Retention removed all records.
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

/// Number of times each kind of fault was injected.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts(BTreeMap<FaultKind, u64>);

impl FaultCounts {
    /// Counts one fault.
    pub fn add(&mut self, fault: FaultKind) {
        *self.0.entry(fault).or_default() += 1;
    }

    /// Returns how often this kind was injected.
    pub fn of(&self, fault: FaultKind) -> u64 {
        self.0.get(&fault).copied().unwrap_or(0)
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (fault, count) in &other.0 {
            *self.0.entry(*fault).or_default() += count;
        }
    }

    /// Iterates over the injected kinds with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        self.0.iter().map(|(fault, count)| (*fault, *count))
    }
}
