//! The trouble that a history draws, and its planted flaws.

use anabranch_model::produce::settings::Aggregation;

/// Planted flaws, to see that the oracle notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProduceHistoryFlaw {
    /// Nothing.
    None,
    /// Several containers of a lane go in one request and side by side.
    NoOrder,
    /// Records go on behind a hole.
    GoOnBehindHoles,
    /// Each reply names the shard that was predicted, so that nothing is ever judged.
    BlindJudge,
    /// Containers are judged by a list of the stream that was there before.
    OldList,
    /// A container that failed is put again behind everything newer.
    RetryAtTheBack,
    /// A refusal of the caller is taken for one that no retry can pass.
    GiveUpWhenDenied,
}

/// The kinds of trouble that a run draws.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is one kind of trouble, on or off")]
pub(crate) struct NetworkFaultRates {
    pub(crate) aggregation: Aggregation,
    /// Entries that fail, in a hundred.
    pub(crate) entry_failures: u64,
    /// Requests that go wrong, in a hundred.
    pub(crate) request_failures: u64,
    /// Lists that fail, in a hundred. 100 is for ever.
    pub(crate) list_failures: u64,
    /// Requests that are refused for good, in a thousand.
    pub(crate) refusals: u64,
    /// Whether the caller is refused for some time, again and again, and single entries with it.
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
