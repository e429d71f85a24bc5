//! Trimming: what retention took unread from a shard that goes on is told before a record behind it
//! is handed out, wherever the library can know.
//!
//! It can't where
//!
//! | retention passed            | and                                       | because                   |
//! |-----------------------------|-------------------------------------------|---------------------------|
//! | before the session began    | it began at no record (a time, LATEST …)  | nothing is known to lack  |
//! | before the session began    | the shard held nothing then               | it may have been idle     |
//! | while the session went on   | its host was paused with its clock        | no time has passed by it  |

use super::delivery::PROMISE;
use super::retention::RetentionTracker;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine, HostId, brief};
use crate::record_source::SimRecord;
use anabranch::event::{Event, ShardEvent};
use anabranch_model::lease::{LeaseKey, LeaseToken};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of one shard.
#[derive(Default)]
struct TrimmingShard<'a> {
    /// The records that retention took unread, as long as nobody told.
    lost: BTreeMap<Position, &'a SimRecord>,
    /// In which line each record was put that retention did not take yet.
    kept: BTreeMap<Position, usize>,
    /// Where the newest session of each host began to read, and in which line.
    began: BTreeMap<HostId, (Position, usize)>,
    /// Whether the shard takes no more records.
    closed: bool,
    /// Whether it is past retention as a whole.
    gone: bool,
}

#[derive(Default)]
struct TrimmingState<'a> {
    shards: BTreeMap<&'a LeaseKey, TrimmingShard<'a>>,
    /// When retention passed last: in which line, and at which time.
    trimmed: Option<(usize, u64)>,
    /// The hosts that stood still with their clocks when it did, and went on since.
    unaware: BTreeSet<HostId>,
}

/// Whether every loss was told that could be.
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
            // Fetching begins anew, behind the last record that was fetched.
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

    /// Nobody can read a record any more. The end of a whole shard is told otherwise.
    fn lose(&mut self, grain: &'a SimRecord) {
        let shard = self.shard(&grain.shard);
        if !shard.gone {
            shard.lost.insert(grain.at, grain);
        }
    }

    /// A record is handed out. Returns, in words, what was lost before it and not told.
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
