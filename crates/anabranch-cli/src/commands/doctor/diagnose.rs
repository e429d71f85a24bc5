//! Diagnosis: converts facts to findings, each with its evidence and the command that fixes it.

use super::facts::DoctorFacts;
use crate::commands::shards::{LeaseLag, ShardStatus, standing};
use crate::shell_word::shell_word;
use crate::time_spec;
use anabranch::stream::api::StreamStatus;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{HandOver, Layout, Lease, is_same_creation};
use serde::Serialize;

/// Maximum fan-out consumers per stream.
const FAN_OUT_LIMIT: usize = 20;
/// Percentage of the retention at which a lag becomes dangerous.
const DANGEROUS_PERCENT: u64 = 70;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Records are not read, or are about to be lost.
    Problem,
    /// Worth knowing.
    Note,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Kind, for scripts.
    pub(super) kind: &'static str,
    pub(super) severity: Severity,
    /// Description.
    pub(super) what: String,
    /// Observations that support it.
    pub(super) evidence: String,
    /// Suggested fix.
    pub(super) mend: String,
}

fn problem(kind: &'static str, what: String, evidence: String, mend: String) -> Finding {
    Finding { kind, severity: Severity::Problem, what, evidence, mend }
}

fn noted(kind: &'static str, what: String, evidence: String, mend: String) -> Finding {
    Finding { kind, severity: Severity::Note, what, evidence, mend }
}

/// Returns all findings: first those of the stream, then those of the leases.
pub(super) fn diagnose(facts: &DoctorFacts) -> Vec<Finding> {
    let mut found = of_stream(facts);
    found.extend(of_permissions(facts));
    found.extend(of_changes(facts));
    found.extend(of_holes(facts));
    found.extend(of_owners(facts));
    found.extend(of_lags(facts));
    found.extend(of_hand_overs(facts));
    found.extend(of_kcl(facts));
    found
}

fn of_stream(facts: &DoctorFacts) -> Vec<Finding> {
    let stream = &facts.stream;
    let mut found = Vec::new();
    if facts.summary.ignores_keys {
        found.push(problem(
            "ignores-keys",
            format!("{stream} ignores partition keys, so no key keeps its order"),
            "its distribution is AUTO".to_owned(),
            "set the stream's distribution to USER_PARTITION_KEY".to_owned(),
        ));
    }
    if facts.summary.status != StreamStatus::Active {
        found.push(noted(
            "not-active",
            format!("{stream} is being changed"),
            format!("its status is {:?}", facts.summary.status).to_uppercase(),
            "wait until it is ACTIVE".to_owned(),
        ));
    }
    if let Some(known) = &facts.remembered
        && !is_same_creation(known.created_ms, facts.summary.created_ms)
    {
        found.push(problem(
            "recreated",
            format!(
                "{stream} was deleted and created again; the checkpoints belong to the old stream"
            ),
            format!(
                "it was created at {}, and the application's stream at {}",
                time_spec::text(facts.summary.created_ms),
                time_spec::text(known.created_ms)
            ),
            "start with a new application name, or delete the application's leases".to_owned(),
        ));
    }
    if let Some(count) = facts.fan_out.filter(|count| *count >= FAN_OUT_LIMIT) {
        found.push(noted(
            "fan-out-full",
            format!("{stream} accepts no more fan-out consumers"),
            format!("{count} are registered, and the limit is {FAN_OUT_LIMIT}"),
            format!(
                "aws kinesis deregister-stream-consumer --stream-arn {} --consumer-name NAME",
                facts.summary.arn
            ),
        ));
    }
    found
}

fn of_permissions(facts: &DoctorFacts) -> Vec<Finding> {
    let denied = facts.denied.iter().map(|action| {
        problem(
            "denied",
            format!("these credentials may not call {action}"),
            "the service denied it".to_owned(),
            format!("allow {action} on {}", facts.summary.arn),
        )
    });
    denied.collect()
}

/// Finds interrupted changes by operator commands.
fn of_changes(facts: &DoctorFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    for left in &facts.unfinished {
        found.push(problem(
            "unfinished-change",
            "a command that changes leases has not finished".to_owned(),
            format!(
                "it began at {}, and its marker row still exists",
                time_spec::text(left.began_ms)
            ),
            format!(
                "unless it is still running, run it again before workers start: {}",
                left.command
            ),
        ));
    }
    for shard in facts.lineage.open_shards() {
        if facts.rows.get(&shard.id).is_some_and(Lease::is_ended) {
            let words = format!("reset --shard {} --to trim --yes", shard.id);
            found.push(problem(
                "ended-too-early",
                format!("{} is no longer read, but records still arrive there", shard.id),
                "its lease says SHARD_END, but the stream says that it is open".to_owned(),
                format!("{} (or --to TIME, or restore a snapshot)", facts.leases_command(&words)),
            ));
        }
    }
    found
}

fn of_holes(facts: &DoctorFacts) -> Vec<Finding> {
    let hole = facts
        .lineage
        .open_shards()
        .filter(|shard| standing(&facts.lineage, &facts.rows, shard) == ShardStatus::Hole);
    hole.map(|shard| {
        problem(
            "hole",
            format!("{} is not read, and no worker will read it", shard.id),
            "it is open, it has no lease, and no lease of an ancestor is unfinished".to_owned(),
            format!(
                "{} (a running worker of this library repairs it automatically)",
                facts.leases_command(&format!("reset --shard {} --to trim --yes", shard.id))
            ),
        )
    })
    .collect()
}

fn of_owners(facts: &DoctorFacts) -> Vec<Finding> {
    let app = &facts.application;
    let watched = time_spec::span(facts.watched_ms);
    let mut found = Vec::new();
    for (shard, beats) in &facts.beats {
        let Some(owner) = facts.rows.get(shard).and_then(|row| row.owner.as_ref()) else {
            continue;
        };
        if !beats {
            found.push(problem(
                "dead-owner",
                format!("{shard} belongs to a worker that sends no heartbeats"),
                format!("no heartbeat from {owner} for {watched}"),
                format!(
                    "start a worker, which takes it over, or: {}",
                    facts.leases_command(&format!("release {shard} --yes"))
                ),
            ));
        }
    }
    let unfinished = facts.rows.values().filter(|row| !row.is_ended()).count();
    if facts.beats.is_empty() && facts.workers.is_empty() && unfinished > 0 {
        found.push(problem(
            "no-worker",
            format!("no worker of {app} is running"),
            format!("none of {unfinished} unfinished leases has an owner"),
            format!(
                "start one, such as: anabranch consume {} --app {}{}",
                shell_word(&facts.stream),
                shell_word(app),
                facts.options
            ),
        ));
    }
    for (id, row) in &facts.rows {
        if !row.is_ended() && !facts.lineage.names(id) {
            found.push(problem(
                "lost-shard",
                format!("{id} expired before it was read to its end"),
                format!("the stream no longer lists it, and its checkpoint is {}", row.checkpoint),
                "its unread records are lost; a running worker ends the lease and continues with \
                 the child shards"
                    .to_owned(),
            ));
        }
    }
    found
}

fn of_lags(facts: &DoctorFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (shard, lag) in &facts.lags {
        let retention_ms = facts.summary.retention_ms;
        match lag {
            LeaseLag::Trimmed => found.push(problem(
                "trimmed",
                format!("records of {shard} expired before they were read"),
                "the record at its checkpoint is past the retention period".to_owned(),
                facts.leases_command(&format!("reset --shard {shard} --to trim --yes")),
            )),
            LeaseLag::Behind(ms)
                if ms.saturating_mul(100) > retention_ms.saturating_mul(DANGEROUS_PERCENT) =>
            {
                found.push(problem(
                    "retention-near",
                    format!("records of {shard} are about to expire unread"),
                    format!(
                        "it is {} behind, and the retention is {}",
                        time_spec::span(*ms),
                        time_spec::span(retention_ms)
                    ),
                    format!(
                        "aws kinesis increase-stream-retention-period --stream-{} {} \
                         --retention-period-hours 168",
                        if facts.stream.is_arn() { "arn" } else { "name" },
                        facts.stream
                    ),
                ));
            }
            LeaseLag::Unknown(why) => found.push(noted(
                "lag-unknown",
                format!("the lag of {shard} is unknown"),
                why.clone(),
                "try again; throttling is temporary".to_owned(),
            )),
            _ => {}
        }
    }
    found
}

fn of_hand_overs(facts: &DoctorFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    let beats = |shard: &ShardId| facts.beats.get(shard).copied().unwrap_or(false);
    for (id, row) in &facts.rows {
        let HandOver::Requested { taker } = &row.hand_over else { continue };
        let gone = facts.layout == Layout::Native && !facts.workers.contains(taker.as_str());
        if gone && !row.is_ended() && !beats(id) {
            found.push(problem(
                "orphaned-hand-over",
                format!("the hand-over of {id} waits for a worker that is gone"),
                format!("{taker} requested it and has no row, and its owner sends no heartbeats"),
                facts.leases_command(&format!("release {id} --yes")),
            ));
        }
    }
    found
}

fn of_kcl(facts: &DoctorFacts) -> Vec<Finding> {
    let kcl = &facts.kcl;
    let mut found = Vec::new();
    for (key, owner) in &kcl.orphaned {
        found.push(problem(
            "orphaned-hand-over",
            format!("the hand-over of {key} is stuck, so no worker reads it"),
            format!(
                "its row has checkpointOwner {owner}, and its counter did not change for {}",
                time_spec::span(facts.watched_ms)
            ),
            format!(
                "aws dynamodb update-item --table-name {} --key '{{\"leaseKey\":{{\"S\":\"{key}\"}}}}' \
                 --update-expression 'REMOVE checkpointOwner, leaseOwner'",
                kcl.table
            ),
        ));
    }
    if let Some((leader, moved)) = &kcl.leader
        && !moved
    {
        let evidence = format!(
            "the lock of {} did not change for {}, and is valid for {}",
            leader.owner,
            time_spec::span(facts.watched_ms),
            time_spec::span(leader.lock_ms)
        );
        let mend = format!(
            "aws dynamodb delete-item --table-name {} --key '{{\"leaseKey\":{{\"S\":\"Leader\"}}}}' \
             (KCL 3.0 to 3.4: table {0}-CoordinatorState, key attribute \"key\")",
            kcl.table
        );
        let what = "the leader of this KCL 3.x fleet sends no heartbeats".to_owned();
        if facts.watched_ms >= leader.lock_ms {
            found.push(problem("dead-leader", what, evidence, mend));
        } else {
            let sure = format!("run again with --watch {}s; then {mend}", leader.lock_ms / 1_000);
            found.push(noted("silent-leader", what, evidence, sure));
        }
    }
    for key in &kcl.unreadable {
        found.push(problem(
            "unreadable-row",
            format!("the row {key} can't be read"),
            "it lacks required attributes, or has invalid ones".to_owned(),
            format!(
                "inspect it: aws dynamodb get-item --table-name {} --key \
                 '{{\"leaseKey\":{{\"S\":\"{key}\"}}}}'",
                kcl.table
            ),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::facts::{InterruptedChange, KclFacts};
    use super::*;
    use anabranch::stream::api::StreamSummary;
    use anabranch_model::hash::HashRange;
    use anabranch_model::lease::kcl_probe::Kcl3Leader;
    use anabranch_model::lease::{Checkpoint, NewLease, StreamFacts, WorkerId};
    use anabranch_model::lineage::{Lineage, Shard};
    use anabranch_model::position::Position;
    use anabranch_model::sequence::SequenceNumber;

    const HOUR_MS: u64 = 3_600_000;

    fn shard() -> Shard {
        Shard {
            id: ShardId::from_index(0),
            parent: None,
            adjacent_parent: None,
            range: HashRange::ALL,
            starting: SequenceNumber::ZERO,
            ending: None,
        }
    }

    /// A healthy application: one shard, one lease, one worker with a heartbeat.
    fn healthy() -> DoctorFacts {
        let mut lease = NewLease::new(&shard(), Position::TrimHorizon).into_lease(&"s".into());
        lease.owner = Some(WorkerId::from("w"));
        let id = shard().id;
        DoctorFacts {
            stream: "s".into(),
            application: "a".to_owned(),
            summary: StreamSummary {
                arn: "arn".to_owned(),
                status: StreamStatus::Active,
                created_ms: 1,
                retention_ms: 24 * HOUR_MS,
                max_record_bytes: 1,
                on_demand: false,
                ignores_keys: false,
                open_shards: 1,
            },
            fan_out: Some(1),
            lineage: Lineage::new([shard()]),
            layout: Layout::Native,
            remembered: Some(StreamFacts { t0_ms: 1, created_ms: 1, first_sync_done: true }),
            rows: [(id.clone(), lease)].into(),
            lags: [(id.clone(), LeaseLag::None)].into(),
            denied: std::collections::BTreeSet::new(),
            watched_ms: 10_000,
            beats: [(id, true)].into(),
            workers: ["w".to_owned()].into(),
            unfinished: Vec::new(),
            options: " --leases memory".to_owned(),
            kcl: KclFacts::default(),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut DoctorFacts), expected: &[(&str, Severity)]) {
        let mut facts = healthy();
        change(&mut facts);
        let found = diagnose(&facts);
        let kinds: Vec<_> = found.iter().map(|found| (found.kind, found.severity)).collect();
        assert_eq!(kinds, expected, "{found:?}");
    }

    #[test]
    fn each_trouble_is_found_and_a_healthy_application_has_none() {
        use Severity::{Note, Problem};
        let id = ShardId::from_index(0);
        check(|_| (), &[]);
        check(|facts| facts.summary.ignores_keys = true, &[("ignores-keys", Problem)]);
        check(|facts| facts.summary.status = StreamStatus::Updating, &[("not-active", Note)]);
        check(|facts| facts.summary.created_ms = 2_000, &[("recreated", Problem)]);
        check(|facts| facts.fan_out = Some(20), &[("fan-out-full", Note)]);
        check(
            |facts| {
                facts.denied.insert("kinesis:GetRecords".to_owned());
            },
            &[("denied", Problem)],
        );
        check(
            |facts| {
                facts.rows.clear();
                facts.lags.clear();
                facts.beats.clear();
            },
            &[("hole", Problem)],
        );
        check(
            |facts| {
                let command = "anabranch leases a reset --to trim --yes".to_owned();
                facts.unfinished.push(InterruptedChange { command, began_ms: 1 });
            },
            &[("unfinished-change", Problem)],
        );
        check(
            |facts| {
                let end = Checkpoint::at(Position::ShardEnd);
                facts.rows.values_mut().for_each(|row| row.checkpoint = end.clone());
                facts.lags.clear();
                facts.beats.clear();
            },
            &[("ended-too-early", Problem)],
        );
        check(
            |facts| {
                facts.beats.insert(id.clone(), false);
            },
            &[("dead-owner", Problem)],
        );
        check(
            |facts| {
                facts.beats.clear();
                facts.workers.clear();
                facts.rows.values_mut().for_each(|row| row.owner = None);
            },
            &[("no-worker", Problem)],
        );
        check(
            |facts| {
                facts.lags.insert(id.clone(), LeaseLag::Behind(18 * HOUR_MS));
            },
            &[("retention-near", Problem)],
        );
        check(
            |facts| {
                facts.lags.insert(id.clone(), LeaseLag::Trimmed);
            },
            &[("trimmed", Problem)],
        );
        check(
            |facts| {
                facts.beats.insert(id.clone(), false);
                let named = HandOver::Requested { taker: WorkerId::from("gone") };
                facts.rows.values_mut().for_each(|row| row.hand_over = named.clone());
            },
            &[("dead-owner", Problem), ("orphaned-hand-over", Problem)],
        );
        let leader = || Kcl3Leader { owner: "j".into(), version: "v".into(), lock_ms: 120_000 };
        check(|facts| facts.kcl.leader = Some((leader(), false)), &[("silent-leader", Note)]);
        check(
            |facts| {
                facts.kcl.leader = Some((leader(), false));
                facts.watched_ms = 120_000;
            },
            &[("dead-leader", Problem)],
        );
        check(|facts| facts.kcl.leader = Some((leader(), true)), &[]);
        check(
            |facts| {
                facts.kcl.orphaned.insert("shardId-000000000000".into(), "j".into());
            },
            &[("orphaned-hand-over", Problem)],
        );
    }
}
