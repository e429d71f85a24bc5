//! Reading again, or passing over: where each lease goes, shown first, done with `--yes`.

use super::application::{Standing, shard_id};
use super::editor::{Editor, moved_to};
use super::halt::Halt;
use super::moment_of_shard::last_before;
use super::snapshot::{Snapshot, WantedLease};
use super::{Options, quiet};
use crate::commands::shards::checkpoint_text;
use crate::connection::{Aws, Connection};
use crate::failure::Failure;
use crate::moment::{self, Moment};
use crate::output::{note, say};
use crate::shell_word::shell_word;
use crate::table::{self, Column};
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

/// Digits from which a number is that of a record, and not an age without a unit.
const SEQUENCE_DIGITS: usize = 20;

/// Where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A place in the stream's history.
    Moment(Moment),
    /// Behind this record of one shard.
    Behind(SequenceNumber, u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, sub) = text.split_once('/').unwrap_or((text, "0"));
        let long = number.len() >= SEQUENCE_DIGITS && number.bytes().all(|b| b.is_ascii_digit());
        match (long, number.parse(), sub.parse()) {
            (true, Ok(number), Ok(sub)) => Ok(Self::Behind(number, sub)),
            _ => text.parse().map(Self::Moment).map_err(|why| {
                format!("{why}; or the number of a record, as `leases show` prints it")
            }),
        }
    }
}

/// The target as it is written.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moment(moment) => match moment.start() {
                StartPosition::TrimHorizon => f.write_str("trim"),
                StartPosition::Latest => f.write_str("latest"),
                StartPosition::AtTimestamp(ms) => f.write_str(&moment::text(ms)),
            },
            Self::Behind(sequence, sub) => write!(f, "{sequence}/{sub}"),
        }
    }
}

/// What was asked for.
pub(super) struct Asked<'a> {
    pub(super) to: Target,
    pub(super) shard: Option<&'a str>,
    pub(super) snapshot: Option<&'a Path>,
    pub(super) yes: bool,
}

impl Asked<'_> {
    /// The words that ask for the same.
    fn words(&self) -> String {
        let shard = self.shard.map(|shard| format!(" --shard {shard}")).unwrap_or_default();
        format!("reset{shard} --to {} --yes", self.to)
    }
}

/// What happens to one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It is read from here.
    Place(ShardId),
    /// It lies before: it counts as done.
    End(ShardId),
    /// It comes again when its parents have ended.
    Remove(ShardId),
}

/// The steps for a whole stream: what was open at the moment is read from it, what followed from
/// that comes later, and what came before is over.
pub(super) fn steps(
    all: &Lineage,
    open_then: &Lineage,
    rows: &BTreeMap<ShardId, Lease>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (id, row) in rows {
        if open_then.names(id) {
            continue;
        }
        let follows = all.ancestors(id).into_iter().any(|ancestor| open_then.names(ancestor));
        if follows {
            steps.push(Step::Remove(id.clone()));
        } else if !row.is_ended() {
            steps.push(Step::End(id.clone()));
        }
    }
    // The young rows go first: a row without its parent would be made again by a repair.
    steps.sort_by_key(|step| matches!(step, Step::End(_)));
    let mut open: Vec<&Shard> = open_then.shards().collect();
    open.sort_by_key(|shard| shard.birth());
    steps.extend(open.into_iter().map(|shard| Step::Place(shard.id.clone())));
    steps
}

/// One row, before and after.
struct Change {
    shard: ShardId,
    now: Option<Lease>,
    /// `None`: the row goes.
    after: Option<WantedLease>,
}

#[derive(Serialize)]
struct Shown<'a> {
    shard: &'a str,
    now: Option<String>,
    after: Option<String>,
}

/// Plans, shows, and does it if that was asked for.
pub(super) async fn run(
    options: &Options,
    connection: &Connection,
    asked: &Asked<'_>,
) -> Result<(), Failure> {
    let standing = Standing::read_any(options, connection).await?;
    let (store, stream) = standing.only_stream(options)?;
    let aws = connection.aws().await?;
    aws.look_at(&stream.stream).await?;
    let place = Place { aws: &aws, stream: &stream.stream, layout: store.layout() };
    let changes = place.changes(asked, &stream.by_shard()).await?;
    show(&changes, options.json);
    if !asked.yes {
        note!("nothing was written: add --yes to do it");
        return Ok(());
    }
    let standing = Standing::of(store, Some(stream.stream.as_str()), &options.app).await?;
    quiet::demand(&standing, &options.app, options.lease_time).await?;
    let kept = Snapshot::of(&options.app, &standing).write_before_a_change(asked.snapshot)?;
    let again = super::command(options, connection, &asked.words());
    let mut halt = Halt::new(format!(
        "before workers start, finish it with the same command, or bring the leases back: `{}`",
        super::command(
            options,
            connection,
            &format!("restore {} --yes", shell_word(kept.display()))
        )
    ))?;
    let editor = Editor::announcing(&standing.store, again);
    for worker in quiet::dead(&standing) {
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
    editor.finish().await?;
    note!("{} leases were reset", changes.len());
    Ok(())
}

fn show(changes: &[Change], json: bool) {
    let text = |checkpoint: Option<&Checkpoint>, none: &str| {
        checkpoint.map_or_else(|| none.to_owned(), checkpoint_text)
    };
    if json {
        let shown: Vec<_> = changes
            .iter()
            .map(|change| Shown {
                shard: change.shard.as_str(),
                now: change.now.as_ref().map(|lease| lease.checkpoint.to_string()),
                after: change.after.as_ref().map(|lease| lease.checkpoint.to_string()),
            })
            .collect();
        say!("{}", serde_json::to_string(&shown).unwrap_or_default());
        return;
    }
    let mut rows = Vec::new();
    for change in changes {
        rows.push(vec![
            change.shard.to_string(),
            text(change.now.as_ref().map(|lease| &lease.checkpoint), "no lease"),
            text(
                change.after.as_ref().map(|lease| &lease.checkpoint),
                "no lease: it comes again when its parents are done",
            ),
        ]);
    }
    let columns = [Column::kept("shard"), Column::kept("now"), Column::cut("after", 0, 12)];
    table::show(&columns, &rows);
}

/// Where the leases are, for the questions that a plan has.
struct Place<'a> {
    aws: &'a Aws,
    stream: &'a StreamName,
    layout: Layout,
}

impl Place<'_> {
    async fn changes(
        &self,
        asked: &Asked<'_>,
        rows: &BTreeMap<ShardId, Lease>,
    ) -> Result<Vec<Change>, Failure> {
        let list = |filter| {
            let call = move || self.aws.kinesis.list_shards(self.stream, filter);
            async move { self.aws.ask(self.stream, call).await }
        };
        let all = Lineage::new(list(ShardFilter::All).await?.shards);
        let one = asked.shard.map(shard_id);
        let (filter, moment) = match (asked.to, &one) {
            (Target::Behind(..), None) => {
                return Err(Failure::usage(
                    "the number of a record needs --shard: it is one shard's",
                ));
            }
            (Target::Behind(sequence, sub), Some(id)) => {
                let shard = self.listed(&all, id)?;
                let after = self.wanted(&shard, rows, Position::At { sequence, sub });
                return Ok(vec![change(id, rows, Some(after))]);
            }
            (Target::Moment(moment), _) => match moment.start() {
                StartPosition::TrimHorizon => (ShardFilter::AtTrimHorizon, moment),
                StartPosition::Latest => (ShardFilter::AtLatest, moment),
                StartPosition::AtTimestamp(ms) => (ShardFilter::AtTimestamp(ms), Moment::At(ms)),
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
            // A moment before the oldest record, or before the stream itself.
            then = Lineage::new(list(ShardFilter::AtTrimHorizon).await?.shards);
        }
        if !coverage::holes(then.shards().map(|shard| shard.range)).is_empty() {
            return Err(Failure::usage(format!(
                "the list of the shards of {} leaves keys out: try again when no reshard is under way",
                self.stream
            )));
        }
        let mut changes = Vec::new();
        for step in steps(&all, &then, rows) {
            changes.push(match step {
                Step::Remove(id) => change(&id, rows, None),
                Step::End(id) => {
                    let after = rows.get(&id).map(WantedLease::of);
                    let after = after.map(|row| moved_to(row, Position::ShardEnd));
                    change(&id, rows, after)
                }
                Step::Place(id) => {
                    let shard = self.listed(&then, &id)?;
                    let to = self.position(&shard, moment, now_ms).await?;
                    change(&id, rows, Some(self.wanted(&shard, rows, to)))
                }
            });
        }
        changes.sort_by(|a, b| a.shard.cmp(&b.shard));
        // Rows that go, go from the youngest on; the others follow from the oldest on.
        let (mut going, staying): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.after.is_none());
        going.reverse();
        going.extend(staying);
        Ok(going)
    }

    fn listed(&self, lineage: &Lineage, id: &ShardId) -> Result<Shard, Failure> {
        lineage.get(id).cloned().ok_or_else(|| {
            Failure::usage(format!("stream {} has no shard {id} any more", self.stream))
        })
    }

    fn wanted(&self, shard: &Shard, rows: &BTreeMap<ShardId, Lease>, to: Position) -> WantedLease {
        let row = rows.get(&shard.id).cloned();
        let row = row.unwrap_or_else(|| NewLease::new(shard, to).into_lease(self.stream));
        let mut wanted = moved_to(WantedLease::of(&row), to);
        wanted.range = wanted.range.or(Some(shard.range));
        // Children are noted at the end of a shard, which is ahead again.
        wanted.children.clear();
        wanted
    }

    /// What a moment is in a shard. KCL's rows keep no time, so there it is the last record before.
    async fn position(
        &self,
        shard: &Shard,
        moment: Moment,
        now_ms: u64,
    ) -> Result<Position, Failure> {
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

fn change(id: &ShardId, rows: &BTreeMap<ShardId, Lease>, after: Option<WantedLease>) -> Change {
    Change { shard: id.clone(), now: rows.get(id).cloned(), after }
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
        // 0 became 1, which became 2, which became 3; 1 was open at the moment.
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
            [Step::Remove(id(2)), Step::Remove(id(3)), Step::End(id(0)), Step::Place(id(1))]
        );
    }

    #[test]
    fn a_target_is_a_time_or_the_number_of_a_record() {
        let number = "49590338271490256608559692538361571095921575989136588898";
        assert_eq!(number.parse(), Ok(Target::Behind(number.parse().unwrap(), 0)));
        assert_eq!(format!("{number}/7").parse(), Ok(Target::Behind(number.parse().unwrap(), 7)));
        assert_eq!("trim".parse(), Ok(Target::Moment(Moment::Trim)));
        assert!("12345".parse::<Target>().is_err());
    }
}
