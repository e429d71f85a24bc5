//! Whether a table of KCL may be worked on: who else does, judged by what moves on it.
//!
//! Workers of KCL 1.x and 2.x share a table with ours. In a fleet of KCL 3.x a leader assigns the
//! leases and would fight us, so such a table is left alone until nothing on it moves: no lease's
//! counter for a lease time, and not the leader's lock for as long as a lock is good.

use super::row::LeaseKey;
use crate::ids::StreamName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How long a leader of KCL 3.x holds its lock without a sign of life, unless its row says another
/// time.
pub const LEADER_LOCK_MS: u64 = 120_000;

/// What is to be seen on a table before work begins. The default is a table with nothing to fear.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KclProbe {
    /// How many rows there are of each kind; leases are `LEASE`.
    pub kinds: BTreeMap<String, u64>,
    /// The counter of each lease, by the row's key.
    pub counters: BTreeMap<String, u64>,
    /// The lock of the leader of a KCL 3.x fleet.
    pub leader: Option<Kcl3Leader>,
    /// Which version the fleet last agreed on, as KCL 3.x notes it.
    pub client_version: Option<String>,
    /// Whether the table has the index that every worker of KCL 3.x makes.
    pub has_owner_index: bool,
    /// Why the table beside it, where KCL 3.0 to 3.4 keep lock and version, can't be read.
    pub coordinator_denied: Option<String>,
    /// Leases of a table for several streams where one is wanted, or the other way round.
    pub of_other_mode: u64,
    /// How many leases each stream has in a table for several, by KCL's id of the stream.
    pub streams: BTreeMap<String, u64>,
    /// Who owns a lease of any stream of the table. `None` where the store does not tell.
    pub owners: Option<BTreeSet<String>>,
    /// Rows that should be leases and can't be read.
    pub unreadable: Vec<String>,
}

/// The lock of the leader of a KCL 3.x fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kcl3Leader {
    /// Which worker holds it.
    pub owner: String,
    /// Renewed with each of its signs of life.
    pub version: String,
    /// For how long one is good, in milliseconds.
    pub lock_ms: u64,
}

/// The counters of a survey, for the first poll after it: a lease whose counter is the same then
/// has not moved since the survey.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProbeBaseline {
    /// When the reply to the survey arrived, in milliseconds of the watcher's clock.
    at_ms: u64,
    /// The counter by the stream's short name, if the table is for several, and the shard. `None`
    /// where two streams of one name are in the table.
    counters: BTreeMap<(Option<String>, String), Option<u64>>,
}

impl ProbeBaseline {
    /// Keeps the counters of a survey whose reply arrived at `at_ms`.
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

    /// Returns when the reply to the survey arrived, if it showed this counter of the lease.
    pub fn seen_at(&self, lease: &LeaseKey, counter: u64) -> Option<u64> {
        let stream = lease.stream.as_str().rsplit('/').next().map(str::to_owned);
        let shard = lease.shard.to_string();
        let of_several = self.counters.get(&(stream, shard.clone()));
        let seen = of_several.or_else(|| self.counters.get(&(None, shard)))?;
        (*seen == Some(counter)).then_some(self.at_ms)
    }
}

/// Whether work may begin.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum ProbeVerdict {
    /// Nothing is in the way.
    Clear,
    /// KCL 3.x worked here last. Survey again after so many milliseconds, at the latest.
    Wait {
        /// How long nothing more may move.
        ms: u64,
    },
    /// Not on this table.
    Refuse(ProbeRefusal),
}

/// Why a table must not be worked on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeRefusal {
    /// A fleet of KCL 3.x is at work.
    Kcl3AtWork {
        /// What moved.
        moved: ProbeActivity,
        /// The version that the fleet agreed on, if it is noted.
        version: Option<String>,
    },
    /// The rows are for several streams and one is wanted, or the other way round.
    OtherMode {
        /// How many rows.
        rows: u64,
    },
    /// A fleet of KCL 3.x was here, and its lock can't be read.
    LockUnreadable {
        /// What the store said.
        why: String,
    },
}

/// What moved on a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeActivity {
    /// The leader's lock.
    Leader(String),
    /// A lease.
    Lease(String),
    /// The version that the fleet agreed on.
    Version,
}

impl KclProbe {
    /// Whether a leader assigns the leases here, or did so last. A fleet that is only about to move
    /// to 3.x takes leases as 2.x does.
    pub fn is_kcl3(&self) -> bool {
        match self.client_version.as_deref() {
            Some(version) => version.starts_with("CLIENT_VERSION_3X"),
            None => self.leader.is_some(),
        }
    }

    /// The streams of a table for several, by KCL's id, that are none of these. A stream is known
    /// by its name or its ARN, and KCL's id has the name in the middle.
    pub fn others_than(&self, reads: &[StreamName]) -> Vec<String> {
        let name = |read: &StreamName| read.as_str().rsplit('/').next().map(str::to_owned);
        let reads: BTreeSet<String> = reads.iter().filter_map(name).collect();
        let is_read = |id: &String| id.split(':').nth(1).is_some_and(|name| reads.contains(name));
        self.streams.keys().filter(|id| !is_read(id)).cloned().collect()
    }

    /// Whether there is something that only time can tell.
    fn needed_ms(&self, lease_ms: u64) -> u64 {
        self.leader.as_ref().map_or(lease_ms, |leader| lease_ms.max(leader.lock_ms))
    }
}

/// Judges a table by two surveys: the first one, and one `elapsed_ms` after it. At the start they
/// are the same.
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

/// Whether a table that was clear at the start has to be left, by a survey made since. A fleet of
/// KCL 3.x that was at work before the start and is gone leaves its version behind; its lock moves
/// only when it comes back.
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
    // A lock that is let go deletes its row: that is a leader that has just stopped, not one at work.
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
                write!(
                    f,
                    "a fleet of KCL 3.x is at work ({version}; {moved}); stop its workers, "
                )?;
                f.write_str("or roll it back to KCL 2.x")
            }
            Self::OtherMode { rows } => write!(
                f,
                "{rows} of its leases are of the other kind: a table of KCL is for one stream, and \
                 its leases are called as the shards are, or for several, and they are called \
                 account:stream:creation time:shard; give this application a table of its own, or \
                 read this one as those do who made these leases"
            ),
            Self::LockUnreadable { why } => write!(
                f,
                "KCL 3.x has worked here, and whether it still does can't be seen: {why}; grant \
                 read access to that table, or delete it with its fleet"
            ),
        }
    }
}

impl fmt::Display for ProbeActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader(owner) => write!(f, "worker {owner} holds the leader's lock"),
            Self::Lease(key) => write!(f, "lease {key} moved"),
            Self::Version => f.write_str("the fleet has moved to it"),
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
            // The leader stopped and let its lock go.
            (&with_leader, &without, 10_000, "clear"),
            (&with_leader, &without, 9_000, "wait 1000"),
            (&with_leader, &table(&[1, 2], Some("3X"), Some("b")), 30_000, "leader's lock"),
            (&without, &table(&[1, 2], Some("3X"), Some("a")), 30_000, "leader's lock"),
            (&with_leader, &table(&[1, 3], Some("3X"), Some("a")), 4_000, "lease shard-1 moved"),
            (&without, &table(&[1, 2, 0], Some("3X"), None), 4_000, "lease shard-2 moved"),
            // A lock without a note of the version, as 3.x leaves it before the first one.
            (&table(&[], None, Some("a")), &table(&[], None, Some("b")), 1, "leader's lock"),
        ] {
            check(first, latest, elapsed_ms, expected);
        }
    }

    #[test]
    fn a_fleet_that_moves_to_kcl_3_meanwhile_is_seen() {
        let (before, after) =
            (table(&[1], Some("UPGRADE_FROM_2X"), None), table(&[2], Some("3X"), Some("a")));
        check(&before, &after, 5_000, "KCL 3.x is at work");
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
            (&upgrading, &table(&[2], Some("3X_WITH_ROLLBACK"), None), Some("has moved to it")),
            (&upgrading, &table(&[2], Some("3X"), Some("a")), Some("leader's lock")),
            (&two, &table(&[2], None, Some("a")), Some("leader's lock")),
            // The version of a fleet that was gone at the start stays, and counters are ours.
            (&gone, &table(&[7], Some("3X"), Some("a")), None),
            (&gone, &let_go, None),
            (&let_go, &let_go, None),
            (&gone, &table(&[7], Some("3X"), Some("b")), Some("leader's lock")),
            (&let_go, &gone, Some("leader's lock")),
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
