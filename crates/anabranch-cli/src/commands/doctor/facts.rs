//! Facts about a stream and an application.

use crate::commands::shards::LeaseLag;
use crate::shell_word::shell_word;
use anabranch::stream::api::StreamSummary;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::kcl_probe::Kcl3Leader;
use anabranch_model::lease::{Layout, Lease, StreamFacts};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};

/// The facts on which a diagnosis is based.
pub(super) struct DoctorFacts {
    /// Stream name.
    pub(super) stream: StreamName,
    /// Application name.
    pub(super) application: String,
    pub(super) summary: StreamSummary,
    /// Number of registered fan-out consumers.
    pub(super) fan_out: Option<usize>,
    pub(super) lineage: Lineage,
    pub(super) layout: Layout,
    /// Facts that the native layout stores about the stream.
    pub(super) remembered: Option<StreamFacts>,
    /// Leases by shard.
    pub(super) rows: BTreeMap<ShardId, Lease>,
    /// Lags of the unfinished leases.
    pub(super) lags: BTreeMap<ShardId, LeaseLag>,
    /// Denied calls, as named in policies.
    pub(super) denied: BTreeSet<String>,
    /// Time for which heartbeats were watched, in milliseconds.
    pub(super) watched_ms: u64,
    /// State of each owner by shard: `true` if a heartbeat was seen.
    pub(super) beats: BTreeMap<ShardId, bool>,
    /// Workers with a row that are not evicted (native layout).
    pub(super) workers: BTreeSet<String>,
    /// Operator commands that started to change leases and did not finish.
    pub(super) unfinished: Vec<InterruptedChange>,
    /// Connection settings as command line options.
    pub(super) options: String,
    /// Facts that only a KCL table has.
    pub(super) kcl: KclFacts,
}

/// A command that started to change leases, by the marker row that it left (native layout).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterruptedChange {
    pub(super) command: String,
    /// Start time in milliseconds since 1970.
    pub(super) began_ms: u64,
}

/// Facts that only a KCL table has.
#[derive(Debug, Default)]
pub(super) struct KclFacts {
    /// Table name.
    pub(super) table: String,
    /// The leader's lock, and true if it moved.
    pub(super) leader: Option<(Kcl3Leader, bool)>,
    /// Leases with a handover mark that did not move: lease key and previous owner.
    pub(super) orphaned: BTreeMap<String, String>,
    /// Rows that can't be read.
    pub(super) unreadable: Vec<String>,
}

impl DoctorFacts {
    /// Returns a suggested command on the examined leases.
    pub(super) fn leases_command(&self, words: &str) -> String {
        let (app, stream) = (shell_word(&self.application), shell_word(&self.stream));
        format!("anabranch leases {app} {words} --stream {stream}{}", self.options)
    }

    /// Returns a summary line of the examined state.
    pub(super) fn headline(&self) -> String {
        let open = self.lineage.open_shards().count();
        let owned = self.beats.values().filter(|beats| **beats).count();
        let behind = self.lags.values().filter_map(LeaseLag::ms).max().unwrap_or(0);
        format!(
            "{} and {}: {open} open shards, {} leases, {owned} held by live workers, at most {} \
             behind",
            self.stream,
            self.application,
            self.rows.len(),
            crate::time_spec::span(behind)
        )
    }
}
