//! Detection of a KCL 3.x fleet on a lease table, by the changes on the table.
//!
//! Workers of KCL 1.x and 2.x can share a table with Anabranch. In a KCL 3.x fleet a leader assigns
//! the leases and would conflict with Anabranch, so such a table is not used until it is quiet. It
//! is quiet if no lease counter has changed for a lease time, and the leader's lock has not changed
//! for its validity.

use super::row::LeaseKey;
use crate::ids::StreamName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Time for which a KCL 3.x leader holds its lock without a heartbeat, unless its row names
/// another.
pub const LEADER_LOCK_MS: u64 = 120_000;

/// State of a table before work begins. The default is a table that nothing else uses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KclProbe {
    /// Number of rows of each kind; leases are `LEASE`.
    pub kinds: BTreeMap<String, u64>,
    /// Counter of each lease, by the row's key.
    pub counters: BTreeMap<String, u64>,
    /// Lock of the leader of a KCL 3.x fleet.
    pub leader: Option<Kcl3Leader>,
    /// Version that the fleet last agreed on, as KCL 3.x records it.
    pub client_version: Option<String>,
    /// True if the table has the index that every KCL 3.x worker creates.
    pub has_owner_index: bool,
    /// Reason why the coordinator table cannot be read, in which KCL 3.0 to 3.4 store lock and
    /// version.
    pub coordinator_denied: Option<String>,
    /// Number of leases in multi-stream form where single-stream form is expected, or the reverse.
    pub of_other_mode: u64,
    /// Number of leases of each stream in a multi-stream table, by KCL's stream identifier.
    pub streams: BTreeMap<String, u64>,
    /// Owners of leases of any stream in the table, or `None` if the store does not report them.
    pub owners: Option<BTreeSet<String>>,
    /// Lease rows that cannot be read.
    pub unreadable: Vec<String>,
}

/// Lock of the leader of a KCL 3.x fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kcl3Leader {
    /// Worker that holds the lock.
    pub owner: String,
    /// Lock version, changed by each heartbeat.
    pub version: String,
    /// Validity of a heartbeat, in milliseconds.
    pub lock_ms: u64,
}

/// Lease counters of a probe, for the first poll after it: a lease with an unchanged counter has
/// not changed since the probe.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProbeBaseline {
    /// Arrival of the probe's reply, in milliseconds of the watcher's clock.
    at_ms: u64,
    /// Counter by shard and, in a multi-stream table, by the stream's short name. `None` if the
    /// table contains two streams of one name.
    counters: BTreeMap<(Option<String>, String), Option<u64>>,
}

impl ProbeBaseline {
    /// Keeps the counters of a probe whose reply arrived at `at_ms`.
    pub fn new(survey: &KclProbe, at_ms: u64) -> Self {
        let mut counters = BTreeMap::new();
        for (row, counter) in &survey.counters {
            let (stream, shard) = match row.rsplit_once(':') {
                Some((id, shard)) => (id.split(':').nth(1).map(str::to_owned), shard),
                None => (None, row.as_str()),
            };
            let seen = counters.entry((stream, shard.to_owned()));
            seen.and_modify(|counter| *counter = None).or_insert(Some(*counter));
        }
        Self { at_ms, counters }
    }

    /// Returns when the probe's reply arrived, if it showed this counter for the lease.
    pub fn seen_at(&self, lease: &LeaseKey, counter: u64) -> Option<u64> {
        let stream = lease.stream.as_str().rsplit('/').next().map(str::to_owned);
        let shard = lease.shard.to_string();
        let of_several = self.counters.get(&(stream, shard.clone()));
        let seen = of_several.or_else(|| self.counters.get(&(None, shard)))?;
        (*seen == Some(counter)).then_some(self.at_ms)
    }
}

/// Result of evaluating a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum ProbeVerdict {
    /// Work may begin.
    Clear,
    /// KCL 3.x worked here last. Probe again after this time at the latest.
    Wait {
        /// Remaining time, in milliseconds, in which nothing may change.
        ms: u64,
    },
    /// The table must not be used.
    Refuse(ProbeRefusal),
}

/// Reason why a table must not be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeRefusal {
    /// A KCL 3.x fleet is active.
    Kcl3AtWork {
        /// Observed change.
        moved: ProbeActivity,
        /// Version that the fleet agreed on, if it is recorded.
        version: Option<String>,
    },
    /// The leases are in multi-stream form where single-stream form is expected, or the reverse.
    OtherMode {
        /// Number of such leases.
        rows: u64,
    },
    /// A KCL 3.x fleet was here, and its lock cannot be read.
    LockUnreadable {
        /// Error message of the store.
        why: String,
    },
}

/// Change observed on a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeActivity {
    /// The leader's lock changed.
    Leader(String),
    /// A lease changed.
    Lease(String),
    /// The version that the fleet agreed on changed.
    Version,
}

impl KclProbe {
    /// Returns true if a KCL 3.x leader assigns the leases, or did so last. A fleet that is only
    /// preparing the upgrade to 3.x takes leases as 2.x does.
    pub fn is_kcl3(&self) -> bool {
        match self.client_version.as_deref() {
            Some(version) => version.starts_with("CLIENT_VERSION_3X"),
            None => self.leader.is_some(),
        }
    }

    /// Returns the streams of a multi-stream table, by KCL's identifier, that are not in `reads`. A
    /// stream in `reads` is given by name or ARN; KCL's identifier contains the name in the middle.
    pub fn others_than(&self, reads: &[StreamName]) -> Vec<String> {
        let name = |read: &StreamName| read.as_str().rsplit('/').next().map(str::to_owned);
        let reads: BTreeSet<String> = reads.iter().filter_map(name).collect();
        let is_read = |id: &String| id.split(':').nth(1).is_some_and(|name| reads.contains(name));
        self.streams.keys().filter(|id| !is_read(id)).cloned().collect()
    }

    /// Returns the time for which nothing may change: the lease time, or the lock's validity if
    /// that is longer.
    fn needed_ms(&self, lease_ms: u64) -> u64 {
        self.leader.as_ref().map_or(lease_ms, |leader| lease_ms.max(leader.lock_ms))
    }
}

/// Evaluates a table by two probes: the first one, and one made `elapsed_ms` after it. At the start
/// these are the same.
pub fn evaluate(
    first: &KclProbe,
    latest: &KclProbe,
    elapsed_ms: u64,
    lease_ms: u64,
) -> ProbeVerdict {
    if latest.of_other_mode > 0 {
        return ProbeVerdict::Refuse(ProbeRefusal::OtherMode { rows: latest.of_other_mode });
    }
    if let (Some(why), true) = (&latest.coordinator_denied, latest.has_owner_index) {
        return ProbeVerdict::Refuse(ProbeRefusal::LockUnreadable { why: why.clone() });
    }
    if !first.is_kcl3() && !latest.is_kcl3() {
        return ProbeVerdict::Clear;
    }
    if let Some(moved) = moved(first, latest) {
        let version = latest.client_version.clone();
        return ProbeVerdict::Refuse(ProbeRefusal::Kcl3AtWork { moved, version });
    }
    match latest.needed_ms(lease_ms).saturating_sub(elapsed_ms) {
        0 => ProbeVerdict::Clear,
        ms => ProbeVerdict::Wait { ms },
    }
}

/// Returns the reason to stop using a table that was clear at the start, if a later probe shows
/// one. A KCL 3.x fleet that stopped before the start leaves its version behind. Its lock changes
/// only if it comes back.
pub fn must_yield(start: &KclProbe, now: &KclProbe) -> Option<ProbeRefusal> {
    if !now.is_kcl3() {
        return None;
    }
    let moved = match &now.leader {
        Some(leader) if start.leader.as_ref() != Some(leader) => {
            ProbeActivity::Leader(leader.owner.clone())
        }
        _ if !start.is_kcl3() => ProbeActivity::Version,
        _ => return None,
    };
    Some(ProbeRefusal::Kcl3AtWork { moved, version: now.client_version.clone() })
}

fn moved(first: &KclProbe, latest: &KclProbe) -> Option<ProbeActivity> {
    // A released lock has no row: its leader has just stopped and is not active.
    if let Some(leader) = &latest.leader
        && first.leader.as_ref() != Some(leader)
    {
        return Some(ProbeActivity::Leader(leader.owner.clone()));
    }
    let other = |(key, counter): &(&String, &u64)| first.counters.get(*key) != Some(*counter);
    let lease = latest.counters.iter().find(other);
    lease.map(|(key, _)| ProbeActivity::Lease(key.clone()))
}

impl fmt::Display for ProbeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kcl3AtWork { moved, version } => {
                let version = version.as_deref().unwrap_or("KCL 3.x");
                write!(f, "a KCL 3.x fleet is active ({version}; {moved}); stop its workers, ")?;
                f.write_str("or roll it back to KCL 2.x")
            }
            Self::OtherMode { rows } => write!(
                f,
                "{rows} of its leases are of the other kind: a KCL table with one stream names its \
                 leases after the shards, and one with several streams names them \
                 account:stream:creation time:shard; give this application its own table, or read \
                 this table in the mode of the workers that created these leases"
            ),
            Self::LockUnreadable { why } => write!(
                f,
                "a KCL 3.x fleet has used this table, and it is unknown whether it still does: \
                 {why}; grant read access to that table, or delete it with its fleet"
            ),
        }
    }
}

impl fmt::Display for ProbeActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader(owner) => write!(f, "worker {owner} holds the leader lock"),
            Self::Lease(key) => write!(f, "lease {key} has changed"),
            Self::Version => f.write_str("the fleet has migrated to it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_MS: u64 = 10_000;

    fn table(counters: &[u64], version: Option<&str>, leader: Option<&str>) -> KclProbe {
        let counters = counters.iter().enumerate().map(|(i, n)| (format!("shard-{i}"), *n));
        let leader = leader.map(|version| Kcl3Leader {
            owner: "java".into(),
            version: version.into(),
            lock_ms: LEADER_LOCK_MS,
        });
        let client_version = version.map(|version| format!("CLIENT_VERSION_{version}"));
        KclProbe { counters: counters.collect(), leader, client_version, ..KclProbe::default() }
    }

    fn check(first: &KclProbe, latest: &KclProbe, elapsed_ms: u64, expected: &str) {
        let verdict = match evaluate(first, latest, elapsed_ms, LEASE_MS) {
            ProbeVerdict::Clear => "clear".to_owned(),
            ProbeVerdict::Wait { ms } => format!("wait {ms}"),
            ProbeVerdict::Refuse(why) => why.to_string(),
        };
        let said = verdict.contains(expected) && !expected.is_empty();
        assert!(said, "{first:?}\nthen {latest:?} after {elapsed_ms}: {verdict}, not {expected}");
    }

    #[test]
    fn a_fleet_of_kcl_2_is_joined_at_once() {
        for version in [None, Some("UPGRADE_FROM_2X"), Some("2X"), Some("INIT")] {
            let (before, after) = (table(&[1, 2], version, None), table(&[3, 4], version, None));
            check(&before, &before, 0, "clear");
            check(&before, &after, 1, "clear");
        }
        check(&KclProbe::default(), &KclProbe::default(), 0, "clear");
    }

    #[test]
    fn a_table_of_kcl_3_is_taken_over_once_nothing_moves() {
        let with_leader = table(&[1, 2], Some("3X"), Some("a"));
        let without = table(&[1, 2], Some("3X_WITH_ROLLBACK"), None);
        for (first, latest, elapsed_ms, expected) in [
            (&with_leader, &with_leader, 0, "wait 120000"),
            (&with_leader, &with_leader, 119_999, "wait 1"),
            (&with_leader, &with_leader, 120_000, "clear"),
            (&without, &without, 0, "wait 10000"),
            (&without, &without, 10_000, "clear"),
            // The leader stopped and released its lock.
            (&with_leader, &without, 10_000, "clear"),
            (&with_leader, &without, 9_000, "wait 1000"),
            (&with_leader, &table(&[1, 2], Some("3X"), Some("b")), 30_000, "leader lock"),
            (&without, &table(&[1, 2], Some("3X"), Some("a")), 30_000, "leader lock"),
            (
                &with_leader,
                &table(&[1, 3], Some("3X"), Some("a")),
                4_000,
                "lease shard-1 has changed",
            ),
            (&without, &table(&[1, 2, 0], Some("3X"), None), 4_000, "lease shard-2 has changed"),
            // A lock without a version, as 3.x leaves it before the first one is recorded.
            (&table(&[], None, Some("a")), &table(&[], None, Some("b")), 1, "leader lock"),
        ] {
            check(first, latest, elapsed_ms, expected);
        }
    }

    #[test]
    fn a_fleet_that_moves_to_kcl_3_meanwhile_is_seen() {
        let (before, after) =
            (table(&[1], Some("UPGRADE_FROM_2X"), None), table(&[2], Some("3X"), Some("a")));
        check(&before, &after, 5_000, "KCL 3.x fleet is active");
    }

    #[test]
    fn a_table_is_left_to_a_fleet_that_moves_to_kcl_3_or_comes_back() {
        let (two, upgrading) =
            (table(&[1], None, None), table(&[1], Some("UPGRADE_FROM_2X"), None));
        let gone = table(&[1], Some("3X"), Some("a"));
        let let_go = table(&[1], Some("3X"), None);
        for (start, now, expected) in [
            (&two, &two, None),
            (&two, &upgrading, None),
            (&upgrading, &table(&[2], Some("3X_WITH_ROLLBACK"), None), Some("has migrated to it")),
            (&upgrading, &table(&[2], Some("3X"), Some("a")), Some("leader lock")),
            (&two, &table(&[2], None, Some("a")), Some("leader lock")),
            // The version of a fleet that had stopped before the start remains, and the counters
            // are Anabranch's.
            (&gone, &table(&[7], Some("3X"), Some("a")), None),
            (&gone, &let_go, None),
            (&let_go, &let_go, None),
            (&gone, &table(&[7], Some("3X"), Some("b")), Some("leader lock")),
            (&let_go, &gone, Some("leader lock")),
            (&gone, &table(&[7], Some("2X"), Some("b")), None),
        ] {
            let said = must_yield(start, now).map(|why| why.to_string());
            let as_expected = match (&said, expected) {
                (Some(said), Some(words)) => said.contains(words),
                (said, words) => said.is_none() && words.is_none(),
            };
            assert!(as_expected, "{start:?}\nthen {now:?}: {said:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_survey_tells_the_counters_of_leases_by_their_rows() {
        let counters =
            [("shard-0", 4), ("1:orders:5:shard-1", 5), ("1:twice:5:s", 6), ("2:twice:7:s", 6)];
        let counters = counters.iter().map(|(key, counter)| ((*key).to_owned(), *counter));
        let survey = KclProbe { counters: counters.collect(), ..KclProbe::default() };
        let surveyed = ProbeBaseline::new(&survey, 70);
        let arn = "arn:aws:kinesis:eu-west-1:000000000001:stream/orders";
        for (stream, shard, counter, expected) in [
            ("any", "shard-0", 4, Some(70)),
            ("any", "shard-0", 5, None),
            ("orders", "shard-1", 5, Some(70)),
            (arn, "shard-1", 5, Some(70)),
            ("orders", "shard-2", 5, None),
            ("other", "shard-1", 5, None),
            ("twice", "s", 6, None),
        ] {
            let showed = surveyed.seen_at(&LeaseKey::new(stream, shard), counter);
            assert_eq!(showed, expected, "{stream} {shard} {counter}");
        }
    }

    #[test]
    fn streams_that_are_not_read_are_found_by_the_name_in_kcls_id() {
        let ids = ["1:orders:5", "1:clicks:6", "2:orders:7"];
        let streams = ids.into_iter().map(|id| (id.to_owned(), 1)).collect();
        let survey = KclProbe { streams, ..KclProbe::default() };
        let arn = "arn:aws:kinesis:eu-west-1:000000000001:stream/clicks";
        for (reads, others) in [
            (vec![], ids.to_vec()),
            (vec!["orders"], vec!["1:clicks:6"]),
            (vec![arn], vec!["1:orders:5", "2:orders:7"]),
            (vec!["orders", "clicks"], vec![]),
        ] {
            let reads: Vec<StreamName> = reads.into_iter().map(StreamName::from).collect();
            let mut others: Vec<&str> = others;
            others.sort_unstable();
            assert_eq!(survey.others_than(&reads), others, "{reads:?}");
        }
    }

    #[test]
    fn other_modes_and_unreadable_locks_are_refused_in_words() {
        let mixed = KclProbe { of_other_mode: 2, ..KclProbe::default() };
        check(&mixed, &mixed, 0, "2 of its leases");
        let denied = KclProbe { coordinator_denied: Some("denied".into()), ..KclProbe::default() };
        // Without the index KCL 3.x was never here, and there is no such table to read.
        check(&denied, &denied, 0, "clear");
        let indexed = KclProbe { has_owner_index: true, ..denied };
        check(&indexed, &indexed, 0, "grant read access");
    }
}
