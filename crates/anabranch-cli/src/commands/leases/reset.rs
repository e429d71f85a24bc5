//! `leases reset`: moves checkpoints back or forward, shown first and executed with `--yes`.

use super::application::{ApplicationState, shard_id};
use super::editor::{LeaseEditor, moved_to};
use super::interruptible::Interruptible;
use super::position_at_time::last_before;
use super::snapshot::{LeaseSnapshotFile, TargetLease};
use super::{LeasesOptions, liveness};
use crate::commands::shards::checkpoint_text;
use crate::connection::{AwsClients, ConnectionSettings};
use crate::failure::CommandFailure;
use crate::output::{print_line, print_note};
use crate::shell_word::shell_word;
use crate::table::{self, Column};
use crate::time_spec;
use crate::time_spec::TimeSpec;
use anabranch::clock::Clock;
use anabranch::lease::LeaseStore;
use anabranch::stream::api::{ShardFilter, StreamApi};
use anabranch_model::coverage;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Checkpoint, Layout, Lease, NewLease};
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::position::{Position, StartPosition};
use anabranch_model::sequence::SequenceNumber;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Minimum digits of a sequence number, which distinguish it from an age without a unit.
const SEQUENCE_DIGITS: usize = 20;

/// Target of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetTarget {
    /// A point in the stream's history.
    Moment(TimeSpec),
    /// After this record of one shard.
    Behind(SequenceNumber, u64),
}

impl FromStr for ResetTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, sub) = text.split_once('/').unwrap_or((text, "0"));
        let long = number.len() >= SEQUENCE_DIGITS && number.bytes().all(|b| b.is_ascii_digit());
        match (long, number.parse(), sub.parse()) {
            (true, Ok(number), Ok(sub)) => Ok(Self::Behind(number, sub)),
            _ => text
                .parse()
                .map(Self::Moment)
                .map_err(|why| format!("{why}; or a sequence number, as `leases show` prints it")),
        }
    }
}

/// Formats the target as on the command line.
impl fmt::Display for ResetTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moment(moment) => match moment.start() {
                StartPosition::TrimHorizon => f.write_str("trim"),
                StartPosition::Latest => f.write_str("latest"),
                StartPosition::AtTimestamp(ms) => f.write_str(&time_spec::text(ms)),
            },
            Self::Behind(sequence, sub) => write!(f, "{sequence}/{sub}"),
        }
    }
}

/// Arguments of `leases reset`.
pub(super) struct ResetArgs<'a> {
    pub(super) to: ResetTarget,
    pub(super) shard: Option<&'a str>,
    pub(super) snapshot: Option<&'a Path>,
    pub(super) yes: bool,
}

impl ResetArgs<'_> {
    /// Returns the arguments as command line words.
    fn words(&self) -> String {
        let shard = self.shard.map(|shard| format!(" --shard {shard}")).unwrap_or_default();
        format!("reset{shard} --to {} --yes", self.to)
    }
}

/// Change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResetStep {
    /// The shard is read from the target on.
    Place(ShardId),
    /// The shard precedes the target and counts as done.
    End(ShardId),
    /// The row is removed, and created again when its parents have ended.
    Remove(ShardId),
}

/// Returns the steps for a whole stream. Shards open at the target time are read from it. Their
/// descendants come later, and their ancestors count as done.
pub(super) fn steps(
    all: &Lineage,
    open_then: &Lineage,
    rows: &BTreeMap<ShardId, Lease>,
) -> Vec<ResetStep> {
    let mut steps = Vec::new();
    for (id, row) in rows {
        if open_then.names(id) {
            continue;
        }
        let follows = all.ancestors(id).into_iter().any(|ancestor| open_then.names(ancestor));
        if follows {
            steps.push(ResetStep::Remove(id.clone()));
        } else if !row.is_ended() {
            steps.push(ResetStep::End(id.clone()));
        }
    }
    // Descendants go first: a repair would recreate a row without its parent.
    steps.sort_by_key(|step| matches!(step, ResetStep::End(_)));
    let mut open: Vec<&Shard> = open_then.shards().collect();
    open.sort_by_key(|shard| shard.birth());
    steps.extend(open.into_iter().map(|shard| ResetStep::Place(shard.id.clone())));
    steps
}

/// A row before and after the reset.
struct RowChange {
    shard: ShardId,
    now: Option<Lease>,
    /// `None` if the row is removed.
    after: Option<TargetLease>,
}

#[derive(Serialize)]
struct ShownChange<'a> {
    shard: &'a str,
    now: Option<String>,
    after: Option<String>,
}

/// Plans and shows the reset, and executes it with `--yes`.
pub(super) async fn run(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
    asked: &ResetArgs<'_>,
) -> Result<(), CommandFailure> {
    let standing = ApplicationState::read_any(options, connection).await?;
    let (store, stream) = standing.only_stream(options)?;
    let aws = connection.aws().await?;
    aws.check_stream(&stream.stream).await?;
    let place = ResetContext { aws: &aws, stream: &stream.stream, layout: store.layout() };
    let changes = place.changes(asked, &stream.by_shard()).await?;
    show(&changes, options.json);
    if !asked.yes {
        print_note!("nothing was written: add --yes to execute the changes");
        return Ok(());
    }
    let standing = ApplicationState::of(store, Some(stream.stream.as_str()), &options.app).await?;
    liveness::require_stopped(&standing, &options.app, options.lease_time).await?;
    let kept =
        LeaseSnapshotFile::of(&options.app, &standing).write_before_a_change(asked.snapshot)?;
    let again = super::command(options, connection, &asked.words());
    let mut halt = Interruptible::new(format!(
        "before workers start, finish the reset with the same command, or restore the leases: `{}`",
        super::command(
            options,
            connection,
            &format!("restore {} --yes", shell_word(kept.display()))
        )
    ))?;
    let editor = LeaseEditor::with_marker(&standing.store, again);
    for worker in liveness::dead_workers(&standing) {
        halt.step(editor.fence(worker)).await?;
    }
    for change in &changes {
        match (&change.now, &change.after) {
            (now, Some(after)) => {
                halt.step(editor.place(&stream.stream, after, now.as_ref())).await?;
            }
            (Some(now), None) => halt.step(editor.remove(now)).await?,
            (None, None) => {}
        }
    }
    editor.remove_marker().await?;
    print_note!("{} leases were reset", changes.len());
    Ok(())
}

fn show(changes: &[RowChange], json: bool) {
    let text = |checkpoint: Option<&Checkpoint>, none: &str| {
        checkpoint.map_or_else(|| none.to_owned(), checkpoint_text)
    };
    if json {
        let shown: Vec<_> = changes
            .iter()
            .map(|change| ShownChange {
                shard: change.shard.as_str(),
                now: change.now.as_ref().map(|lease| lease.checkpoint.to_string()),
                after: change.after.as_ref().map(|lease| lease.checkpoint.to_string()),
            })
            .collect();
        print_line!("{}", serde_json::to_string(&shown).unwrap_or_default());
        return;
    }
    let mut rows = Vec::new();
    for change in changes {
        rows.push(vec![
            change.shard.to_string(),
            text(change.now.as_ref().map(|lease| &lease.checkpoint), "no lease"),
            text(
                change.after.as_ref().map(|lease| &lease.checkpoint),
                "no lease: it is created again when its parents are done",
            ),
        ]);
    }
    let columns = [Column::kept("shard"), Column::kept("now"), Column::cut("after", 0, 12)];
    table::show(&columns, &rows);
}

/// Stream and store layout of a planned reset.
struct ResetContext<'a> {
    aws: &'a AwsClients,
    stream: &'a StreamName,
    layout: Layout,
}

impl ResetContext<'_> {
    async fn changes(
        &self,
        asked: &ResetArgs<'_>,
        rows: &BTreeMap<ShardId, Lease>,
    ) -> Result<Vec<RowChange>, CommandFailure> {
        let list = |filter| {
            let call = move || self.aws.kinesis.list_shards(self.stream, filter);
            async move { self.aws.ask(self.stream, call).await }
        };
        let all = Lineage::new(list(ShardFilter::All).await?.shards);
        let one = asked.shard.map(shard_id);
        let (filter, moment) = match (asked.to, &one) {
            (ResetTarget::Behind(..), None) => {
                return Err(CommandFailure::usage(
                    "a sequence number needs --shard, because it belongs to one shard",
                ));
            }
            (ResetTarget::Behind(sequence, sub), Some(id)) => {
                let shard = self.listed(&all, id)?;
                let after = self.wanted(&shard, rows, Position::At { sequence, sub });
                return Ok(vec![change(id, rows, Some(after))]);
            }
            (ResetTarget::Moment(moment), _) => match moment.start() {
                StartPosition::TrimHorizon => (ShardFilter::AtTrimHorizon, moment),
                StartPosition::Latest => (ShardFilter::AtLatest, moment),
                StartPosition::AtTimestamp(ms) => (ShardFilter::AtTimestamp(ms), TimeSpec::At(ms)),
            },
        };
        let then = list(filter).await?;
        let now_ms = then.service_ms.unwrap_or_else(|| Clock::machine().wall_ms());
        if let Some(id) = &one {
            let shard = self.listed(&all, id)?;
            let to = self.position(&shard, moment, now_ms).await?;
            let after = self.wanted(&shard, rows, to);
            return Ok(vec![change(id, rows, Some(after))]);
        }
        let mut then = Lineage::new(then.shards);
        if !coverage::holes(then.shards().map(|shard| shard.range)).is_empty() {
            // The time is before the oldest record, or before the creation of the stream.
            then = Lineage::new(list(ShardFilter::AtTrimHorizon).await?.shards);
        }
        if !coverage::holes(then.shards().map(|shard| shard.range)).is_empty() {
            return Err(CommandFailure::usage(format!(
                "the shard list of {} does not cover all keys: try again when no reshard is in \
                 progress",
                self.stream
            )));
        }
        let mut changes = Vec::new();
        for step in steps(&all, &then, rows) {
            changes.push(match step {
                ResetStep::Remove(id) => change(&id, rows, None),
                ResetStep::End(id) => {
                    let after = rows.get(&id).map(TargetLease::of);
                    let after = after.map(|row| moved_to(row, Position::ShardEnd));
                    change(&id, rows, after)
                }
                ResetStep::Place(id) => {
                    let shard = self.listed(&then, &id)?;
                    let to = self.position(&shard, moment, now_ms).await?;
                    change(&id, rows, Some(self.wanted(&shard, rows, to)))
                }
            });
        }
        changes.sort_by(|a, b| a.shard.cmp(&b.shard));
        // Removed rows go first, from the youngest on. The others follow, from the oldest on.
        let (mut going, staying): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.after.is_none());
        going.reverse();
        going.extend(staying);
        Ok(going)
    }

    fn listed(&self, lineage: &Lineage, id: &ShardId) -> Result<Shard, CommandFailure> {
        lineage.get(id).cloned().ok_or_else(|| {
            CommandFailure::usage(format!("stream {} has no shard {id} any more", self.stream))
        })
    }

    fn wanted(&self, shard: &Shard, rows: &BTreeMap<ShardId, Lease>, to: Position) -> TargetLease {
        let row = rows.get(&shard.id).cloned();
        let row = row.unwrap_or_else(|| NewLease::new(shard, to).into_lease(self.stream));
        let mut wanted = moved_to(TargetLease::of(&row), to);
        wanted.range = wanted.range.or(Some(shard.range));
        // Children are noted at the end of a shard, which now lies ahead again.
        wanted.children.clear();
        wanted
    }

    /// Returns the position for a time in a shard. KCL's rows store no time, so there it is the
    /// last record before.
    async fn position(
        &self,
        shard: &Shard,
        moment: TimeSpec,
        now_ms: u64,
    ) -> Result<Position, CommandFailure> {
        match (self.layout, moment.start()) {
            (_, StartPosition::TrimHorizon) => Ok(Position::TrimHorizon),
            (Layout::Native, StartPosition::Latest) => Ok(Position::AtTimestamp(now_ms)),
            (Layout::Kcl, StartPosition::Latest) => Ok(Position::Latest),
            (Layout::Native, StartPosition::AtTimestamp(ms)) => Ok(Position::AtTimestamp(ms)),
            (Layout::Kcl, StartPosition::AtTimestamp(ms)) => {
                last_before(self.aws, self.stream, shard, ms).await
            }
        }
    }
}

fn change(id: &ShardId, rows: &BTreeMap<ShardId, Lease>, after: Option<TargetLease>) -> RowChange {
    RowChange { shard: id.clone(), now: rows.get(id).cloned(), after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::hash::HashRange;

    fn shard(index: u32, parent: Option<u32>) -> Shard {
        Shard {
            id: ShardId::from_index(index),
            parent: parent.map(ShardId::from_index),
            adjacent_parent: None,
            range: HashRange::ALL,
            starting: SequenceNumber::ZERO,
            ending: None,
        }
    }

    #[test]
    fn what_was_open_is_read_what_followed_comes_again_and_what_came_before_is_over() {
        // Shard 0 became 1, then 2, then 3. Shard 1 was open at the target time.
        let all = [shard(0, None), shard(1, Some(0)), shard(2, Some(1)), shard(3, Some(2))];
        let id = ShardId::from_index;
        let rows: BTreeMap<_, _> = all
            .iter()
            .map(|shard| {
                let at = if shard.id == id(3) { Position::TrimHorizon } else { Position::ShardEnd };
                let at = if shard.id == id(0) { Position::Latest } else { at };
                (shard.id.clone(), NewLease::new(shard, at).into_lease(&"s".into()))
            })
            .collect();
        let then = Lineage::new([all[1].clone()]);
        let steps = steps(&Lineage::new(all), &then, &rows);
        assert_eq!(
            steps,
            [
                ResetStep::Remove(id(2)),
                ResetStep::Remove(id(3)),
                ResetStep::End(id(0)),
                ResetStep::Place(id(1))
            ]
        );
    }

    #[test]
    fn a_target_is_a_time_or_the_number_of_a_record() {
        let number = "49590338271490256608559692538361571095921575989136588898";
        assert_eq!(number.parse(), Ok(ResetTarget::Behind(number.parse().unwrap(), 0)));
        assert_eq!(
            format!("{number}/7").parse(),
            Ok(ResetTarget::Behind(number.parse().unwrap(), 7))
        );
        assert_eq!("trim".parse(), Ok(ResetTarget::Moment(TimeSpec::Trim)));
        assert!("12345".parse::<ResetTarget>().is_err());
    }
}
