//! The oracle: compares puts and outcomes with the records that a reader by KCL's rules gets.

use crate::service::Service;
use crate::world::PutName;
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::HashRange;
use anabranch_model::produce::outcome::{OutcomeKind, RejectReason};
use anabranch_model::record::UserRecord;
use std::collections::{BTreeMap, BTreeSet};

/// The puts' outcomes, which must hold at the end.
#[derive(Default)]
pub(crate) struct Oracle {
    /// Outcome of each record, and its index in its Kinesis record.
    pub(crate) settled: BTreeMap<PutName, (OutcomeKind, usize)>,
    /// Outcomes beyond the first.
    pub(crate) settled_twice: Vec<PutName>,
    /// For each resumed key, its last record at each resume. Later records have no order relative
    /// to earlier ones.
    pub(crate) resumed: BTreeMap<u32, Vec<u32>>,
}

impl Oracle {
    pub(crate) fn settle(&mut self, name: PutName, fate: &OutcomeKind, sub: usize) {
        if self.settled.insert(name, (fate.clone(), sub)).is_some() {
            self.settled_twice.push(name);
        }
    }

    /// Returns the key of a record, and how often it had been resumed before the record was put.
    fn run_of(&self, name: PutName) -> (u32, usize) {
        let resumed = self.resumed.get(&name.0).map_or(&[][..], Vec::as_slice);
        (name.0, resumed.iter().filter(|last| **last < name.1).count())
    }

    /// Returns descriptions of all violations.
    pub(crate) fn problems(
        &self,
        service: &Service,
        puts: &[PutName],
        stop_keys: bool,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(self.settled_twice.iter().map(|name| format!("{name:?} settled twice")));
        let unsettled = puts.iter().filter(|name| !self.settled.contains_key(name));
        problems.extend(unsettled.map(|name| format!("{name:?} never settled")));
        let delivered = delivered(service);
        let mut newest: BTreeMap<_, u32> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (name, _) in &delivered {
            if !seen.insert(*name) {
                continue;
            }
            let newest = newest.entry(self.run_of(*name)).or_insert(0);
            if name.1 < *newest {
                problems.push(format!("{name:?} first delivered after {newest}"));
            }
            *newest = name.1.max(*newest);
        }
        let places: BTreeSet<_> = delivered.iter().cloned().collect();
        let stored = stored(service);
        for (name, (fate, sub)) in &self.settled {
            match fate {
                OutcomeKind::Placed(receipt) => {
                    let place = (receipt.shard.as_str().to_owned(), receipt.sequence, *sub as u64);
                    if !places.contains(&(*name, place)) {
                        problems.push(format!("{name:?} placed and not delivered there"));
                    }
                }
                OutcomeKind::Rejected(why) if stored.contains(name) => {
                    problems.push(format!("{name:?} rejected ({why:?}) and in the stream"));
                }
                OutcomeKind::Rejected(_) | OutcomeKind::Unknown => {}
            }
        }
        if stop_keys {
            problems.extend(self.sent_behind_holes(&stored));
        }
        problems
    }

    /// Returns descriptions of the records that were given up.
    pub(crate) fn not_placed(&self) -> Vec<String> {
        let given_up =
            self.settled.iter().filter(|(_, (fate, _))| !matches!(fate, OutcomeKind::Placed(_)));
        given_up.map(|(name, (fate, _))| format!("{name:?} was given up: {fate:?}")).collect()
    }

    /// Returns descriptions of the records of a stopped key that were sent all the same.
    fn sent_behind_holes(&self, stored: &BTreeSet<PutName>) -> Vec<String> {
        let mut holes: BTreeMap<_, u32> = BTreeMap::new();
        let mut not_placed = BTreeSet::new();
        let mut problems = Vec::new();
        for (name, (fate, _)) in &self.settled {
            let run = self.run_of(*name);
            match holes.get(&run) {
                Some(hole) if matches!(fate, OutcomeKind::Placed(_)) => {
                    problems.push(format!("{name:?} placed behind the hole {hole}"));
                }
                Some(hole) if stored.contains(name) && *fate != OutcomeKind::Unknown => {
                    problems.push(format!("{name:?} sent behind the hole {hole}"));
                }
                None if !matches!(fate, OutcomeKind::Placed(_)) => {
                    // A record from before a resume can stop its key once more.
                    let first = not_placed.insert(name.0);
                    if first && *fate == OutcomeKind::Rejected(RejectReason::KeyStopped) {
                        problems.push(format!("{name:?} refused for a stopped key without a hole"));
                    }
                    holes.insert(run, name.1);
                }
                _ => {}
            }
        }
        problems
    }
}

type StoredAt = (String, anabranch_model::sequence::SequenceNumber, u64);

/// Returns the records that a reader by KCL's rules gets, streams and shards in order of creation.
fn delivered(service: &Service) -> Vec<(PutName, StoredAt)> {
    read(service, true)
}

/// Returns everything that is in the stream, including records that KCL drops.
fn stored(service: &Service) -> BTreeSet<PutName> {
    read(service, false).into_iter().map(|(name, _)| name).collect()
}

fn read(service: &Service, by_range: bool) -> Vec<(PutName, StoredAt)> {
    let mut all = Vec::new();
    for shard in service.streams.iter().flatten() {
        for record in &shard.log {
            let range = if by_range { shard.range } else { HashRange::ALL };
            let users: Vec<UserRecord> = match decode(record, range) {
                DecodedAggregate::Plain(_) => vec![record.clone().into()],
                DecodedAggregate::Records(records) => records.collect(),
                DecodedAggregate::Misrouted { .. } => continue,
                other @ DecodedAggregate::Partial { .. } => {
                    panic!("unreadable aggregate: {other:?}")
                }
            };
            all.extend(users.iter().map(|user| {
                let name = PutName::read(&user.data);
                (name, (shard.id.as_str().to_owned(), user.sequence, user.sub))
            }));
        }
    }
    all
}
