//! The faults that a history draws, and its deliberate flaws.

use anabranch_model::produce::settings::Aggregation;

/// Deliberate flaws, which show that the oracle detects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProduceHistoryFlaw {
    /// No flaw.
    None,
    /// Several Kinesis records of a lane are sent in one request and concurrently.
    NoOrder,
    /// Keys continue behind a failed record.
    GoOnBehindHoles,
    /// Each reply names the predicted shard, so that no misrouted record is detected.
    BlindJudge,
    /// Kinesis records are validated with a list of an earlier stream.
    OldList,
    /// A failed Kinesis record is put again behind all newer ones.
    RetryAtTheBack,
    /// A refusal of the caller counts as one that no retry can pass.
    GiveUpWhenDenied,
}

/// Fault rates of a run.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is one kind of trouble, on or off")]
pub(crate) struct NetworkFaultRates {
    pub(crate) aggregation: Aggregation,
    /// Entries that fail, per hundred.
    pub(crate) entry_failures: u64,
    /// Requests that fail, per hundred.
    pub(crate) request_failures: u64,
    /// Lists that fail, per hundred. 100: all of them.
    pub(crate) list_failures: u64,
    /// Requests that are permanently refused, per thousand.
    pub(crate) refusals: u64,
    /// True if the caller is refused for some time, repeatedly, including single entries.
    pub(crate) denials: bool,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) reshards: bool,
    pub(crate) recreations: bool,
    pub(crate) numbered: bool,
    pub(crate) tight_rate: bool,
}

pub(crate) const CALM: NetworkFaultRates = NetworkFaultRates {
    aggregation: Aggregation::ByShard,
    entry_failures: 0,
    request_failures: 0,
    list_failures: 0,
    refusals: 0,
    denials: false,
    deadline_ms: None,
    reshards: false,
    recreations: false,
    numbered: false,
    tight_rate: false,
};

pub(crate) const STORM: NetworkFaultRates = NetworkFaultRates {
    entry_failures: 30,
    request_failures: 25,
    list_failures: 20,
    reshards: true,
    ..CALM
};
