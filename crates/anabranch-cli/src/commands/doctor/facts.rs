//! What was seen of a stream and an application.

use crate::commands::shards::LeaseLag;
use crate::shell_word::shell_word;
use anabranch::stream::api::StreamSummary;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::kcl_probe::Kcl3Leader;
use anabranch_model::lease::{Layout, Lease, StreamFacts};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that a diagnosis rests on.
pub(super) struct DoctorFacts {
    /// The stream's name.
    pub(super) stream: StreamName,
    /// The application's name.
    pub(super) application: String,
    /// The stream.
    pub(super) summary: StreamSummary,
    /// How many fan-out consumers are registered.
    pub(super) fan_out: Option<usize>,
    /// Its shards.
    pub(super) lineage: Lineage,
    /// The layout of the rows.
    pub(super) layout: Layout,
    /// What the native layout remembers of the stream.
    pub(super) remembered: Option<StreamFacts>,
    /// The rows, by shard.
    pub(super) rows: BTreeMap<ShardId, Lease>,
    /// How far the unfinished ones are behind.
    pub(super) lags: BTreeMap<ShardId, LeaseLag>,
    /// Calls that were denied, as policies name them.
    pub(super) denied: BTreeSet<String>,
    /// For how long hearts were watched, in milliseconds.
    pub(super) watched_ms: u64,
    /// Owners, by what their heart did: `true` if it beat.
    pub(super) beats: BTreeMap<ShardId, bool>,
    /// Workers with a row that is not shut out (native layout).
    pub(super) workers: BTreeSet<String>,
    /// Commands of an operator that began to change leases and did not come to their end.
    pub(super) unfinished: Vec<InterruptedChange>,
    /// Where everything is, as options of a command.
    pub(super) options: String,
    /// What only a table of KCL has.
    pub(super) kcl: KclFacts,
}

/// A command that began to change leases, by the row that it left (native layout).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterruptedChange {
    /// The command.
    pub(super) command: String,
    /// When it began, in milliseconds since 1970.
    pub(super) began_ms: u64,
}

/// What only a table of KCL has.
#[derive(Debug, Default)]
pub(super) struct KclFacts {
    /// The table.
    pub(super) table: String,
    /// The leader's lock, and whether it moved.
    pub(super) leader: Option<(Kcl3Leader, bool)>,
    /// Leases with the mark of a hand-over that did not move: lease key and who is to hand over.
    pub(super) orphaned: BTreeMap<String, String>,
    /// Rows that can't be read.
    pub(super) unreadable: Vec<String>,
}

impl DoctorFacts {
    /// A command on the leases that were looked at, for a person to run.
    pub(super) fn leases_command(&self, words: &str) -> String {
        let (app, stream) = (shell_word(&self.application), shell_word(&self.stream));
        format!("anabranch leases {app} {words} --stream {stream}{}", self.options)
    }

    /// One line on what was examined.
    pub(super) fn headline(&self) -> String {
        let open = self.lineage.open_shards().count();
        let owned = self.beats.values().filter(|beats| **beats).count();
        let behind = self.lags.values().filter_map(LeaseLag::ms).max().unwrap_or(0);
        format!(
            "{} and {}: {open} open shards, {} leases, {owned} held by living workers, at most {} \
             behind",
            self.stream,
            self.application,
            self.rows.len(),
            crate::time_spec::span(behind)
        )
    }
}
