//! Trimming checker: when retention removes unread records from a shard that goes on, the library
//! reports the loss before it hands out a later record, wherever it can know.
//!
//! It cannot know in these cases:
//!
//! | retention passed          | and                              | because                      |
//! |---------------------------|----------------------------------|------------------------------|
//! | before the session began  | it did not begin at a record     | no missing record is known   |
//! | before the session began  | the shard held nothing then      | it may have been idle        |
//! | while the session went on | its host and clock were paused   | its clock saw no time pass   |
//!
//! A session that starts at a time or at LATEST does not begin at a record.

use super::delivery::PROMISE;
use super::retention::RetentionTracker;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine, HostId, brief};
use crate::record_source::SimRecord;
use anabranch::event::{Event, ShardEvent};
use anabranch_model::lease::{LeaseKey, LeaseToken};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// State of one shard.
#[derive(Default)]
struct TrimmingShard<'a> {
    /// Records that retention removed unread and whose loss is not reported yet.
    lost: BTreeMap<Position, &'a SimRecord>,
    /// History line that put each record that retention has not removed yet.
    kept: BTreeMap<Position, usize>,
    /// Start position of the newest session of each host, with the history line.
    began: BTreeMap<HostId, (Position, usize)>,
    /// True once the shard takes no more records.
    closed: bool,
    /// True once the shard is entirely past retention.
    gone: bool,
}

#[derive(Default)]
struct TrimmingState<'a> {
    shards: BTreeMap<&'a LeaseKey, TrimmingShard<'a>>,
    /// History line and time of the last trim.
    trimmed: Option<(usize, u64)>,
    /// Hosts that were paused with their clocks during the last trim and have resumed since.
    unaware: BTreeSet<HostId>,
}

/// Checks that every loss was reported that could be known.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut known = TrimmingState::default();
    let mut retention = RetentionTracker::default();
    for (at, line) in lines.iter().enumerate() {
        for lost in retention.see(line.host, &line.what) {
            known.lose(lost.grain);
        }
        known.see(at, line);
        if let HistoryEvent::Handed { hold, grain } = &line.what
            && let Some(words) = known.handed(line.host, hold, grain)
        {
            return Some(of_grain(PROMISE, words, at, hold));
        }
    }
    None
}

impl<'a> TrimmingState<'a> {
    fn see(&mut self, at: usize, line: &'a HistoryLine) {
        match &line.what {
            HistoryEvent::Put(grain) => {
                self.shard(&grain.shard).kept.insert(grain.at, at);
            }
            HistoryEvent::Resharded { closed, .. } => {
                for shard in closed {
                    self.shard(shard).closed = true;
                }
            }
            HistoryEvent::Trimmed => {
                self.trimmed = Some((at, line.at_ms));
                self.unaware.clear();
                for shard in self.shards.values_mut() {
                    shard.kept.clear();
                    shard.gone = shard.closed;
                }
            }
            HistoryEvent::Paused { since_ms } => {
                let unaware = self.trimmed.is_some_and(|(_, at_ms)| *since_ms <= at_ms);
                self.unaware.extend(line.host.filter(|_| unaware));
            }
            HistoryEvent::Handled { grain, done: true, .. } => {
                self.shard(&grain.shard).lost.remove(&grain.at);
            }
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::Started { shard, from })) => {
                let Some(host) = line.host else { return };
                self.shard(shard).began.insert(host, (from.lowest(), at));
            }
            // Fetching starts again, behind the last record that was fetched.
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::Stuck { shard, .. })) => {
                let Some(host) = line.host else { return };
                self.shard(shard).began.insert(host, (Position::Latest, at));
            }
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::RetentionGap {
                shard,
                after,
                to,
            })) => {
                let is_told = |lost: &Position| after <= lost && to.is_none_or(|to| *lost < to);
                self.shard(shard).lost.retain(|lost, _| !is_told(lost));
            }
            _ => {}
        }
    }

    /// Records that `grain` was lost. The end of a whole shard is reported by another event.
    fn lose(&mut self, grain: &'a SimRecord) {
        let shard = self.shard(&grain.shard);
        if !shard.gone {
            shard.lost.insert(grain.at, grain);
        }
    }

    /// Processes a record that is handed out. Returns a description of an earlier record that was
    /// lost without a report.
    fn handed(
        &mut self,
        host: Option<HostId>,
        hold: &LeaseToken,
        grain: &SimRecord,
    ) -> Option<String> {
        let unaware = host.is_some_and(|host| self.unaware.contains(&host));
        let trimmed = self.trimmed.map(|(line, _)| line);
        let shard = self.shards.get_mut(&grain.shard)?;
        let later = shard.lost.split_off(&grain.at);
        let lost = std::mem::replace(&mut shard.lost, later);
        let (_, first) = lost.first_key_value()?;
        let (from, began) = shard.began.get(&host?)?;
        let at_record = matches!(from, Position::At { .. });
        let can_tell = if trimmed.is_some_and(|trimmed| *began < trimmed) {
            !unaware
        } else {
            at_record && shard.kept.values().next().is_some_and(|put| put < began)
        };
        can_tell.then(|| {
            format!(
                "{grain} came, and nobody said that {first} is lost; {} began at {from}",
                brief(hold)
            )
        })
    }

    fn shard(&mut self, shard: &'a LeaseKey) -> &mut TrimmingShard<'a> {
        self.shards.entry(shard).or_default()
    }
}
