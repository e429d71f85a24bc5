//! The end of a shard: first the rows of its children, then their names, then the end itself.

use super::Grip;
use super::own::OwnWrite;
use crate::event::LeaseEvent;
use crate::lease::settle::Settled;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ChildShard, ShardFilter, StreamApi};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Layout, LeaseChange, LeaseKey, NewLease, Refusal, Write};
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::position::Position;

/// How the end of a shard ended.
#[derive(Debug)]
#[must_use]
pub enum Ended {
    /// The row is at the shard's end, and its children have rows.
    Done,
    /// It can't be written yet. Ask again after a pause.
    NotYet {
        /// Why.
        why: &'static str,
    },
    /// The lease is lost.
    Lost,
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> Grip<S, A> {
    /// Notes that every record of the shard is done. `children` are those that the last read
    /// named; where it named none, one list of the shards has to name all of them.
    ///
    /// That there are children proves that the shard is closed, not that it was read to its end: the
    /// caller brings the proof of that. A read that names children is one. One that names none may
    /// err; it counts if it began after a list had named all children, which is what
    /// [`Consumer`](crate::consumer::Consumer) waits for.
    pub async fn end(&self, children: &[ChildShard]) -> Ended {
        let listed;
        let children = if children.is_empty() {
            listed = match self.listed_children().await {
                Ok(listed) => listed,
                Err(not_yet) => return not_yet,
            };
            &listed
        } else {
            children
        };
        if let Some(why) = self.waits_for_other_parent(children).await {
            return Ended::NotYet { why };
        }
        let rows = children.iter().map(|child| NewLease {
            shard: child.id.clone(),
            parents: child.parents.clone(),
            range: child.range,
            checkpoint: Position::TrimHorizon,
        });
        self.end_with(rows.collect()).await
    }

    /// Makes the rows of those that follow, notes their names, and then the end.
    pub(super) async fn end_with(&self, heirs: Vec<NewLease>) -> Ended {
        let names: Vec<ShardId> = heirs.iter().map(|heir| heir.shard.clone()).collect();
        for heir in heirs {
            let write = heir.create(&self.key().stream, self.tools.chance.nonce());
            match self.tools.settle(&write, || self.held.pulse().over_ms()).await {
                Settled::Applied(_) | Settled::Refused { why: Refusal::Exists, .. } => {}
                settled => return self.not_ended(settled),
            }
        }
        let note = LeaseChange::NoteChildren(names.clone());
        let write = Write::lease(self.key(), note, self.tools.chance.nonce());
        match self.tools.settle(&write, || self.held.pulse().over_ms()).await {
            Settled::Applied(_) => {}
            settled => return self.not_ended(settled),
        }
        let mut row = self.held.row().await;
        loop {
            let write = row.hold.end(row.checkpoint.clone(), self.tools.chance.nonce());
            match self.held.write_own(&self.tools, &mut row, &write).await {
                OwnWrite::Done => {
                    let key = self.key().clone();
                    self.tools.tell(LeaseEvent::Ended { lease: key, children: names });
                    return Ended::Done;
                }
                OwnWrite::Moved => {}
                OwnWrite::Lost | OwnWrite::Wrong => return Ended::Lost,
                OwnWrite::Failed(error) => return Ended::Failed(error),
            }
        }
    }

    fn not_ended(&self, settled: Settled) -> Ended {
        match settled {
            Settled::Failed(error) if !error.is_retryable() => Ended::Failed(error),
            _ => {
                self.held.lose();
                Ended::Lost
            }
        }
    }

    /// The children by a full list, for services that don't name them at the end of a read.
    async fn listed_children(&self) -> Result<Vec<ChildShard>, Ended> {
        let key = self.key();
        let lineage = self.list().await;
        let lineage = lineage.ok_or(Ended::NotYet { why: "the shards can't be listed" })?;
        // An end without all children would leave keys to nobody.
        let Some(children) = lineage.followers(&key.shard, self.lease().range.as_ref()) else {
            return Err(Ended::NotYet { why: "no list names all of its children" });
        };
        let child = |shard: &Shard| ChildShard {
            id: shard.id.clone(),
            parents: shard.parents().cloned().collect(),
            range: shard.range,
        };
        Ok(children.into_iter().map(child).collect())
    }

    /// Asks for a full list of the shards.
    async fn list(&self) -> Option<Lineage> {
        let (stream, api) = (&self.key().stream, &self.tools.api);
        let list = self.tools.ask(stream, api.list_shards(stream, ShardFilter::All)).await;
        list.ok().map(|list| Lineage::new(list.shards))
    }

    /// KCL's workers start a merged child whose other parent has no row. So the child's row may
    /// not come before that parent's. A parent that a list lacks, and that names the child, is
    /// trimmed: its row was removed, and nothing of it is left to be read.
    async fn waits_for_other_parent(&self, children: &[ChildShard]) -> Option<&'static str> {
        if self.tools.store.layout() == Layout::Native {
            return None;
        }
        for (child, other) in children.iter().flat_map(edges).collect::<Vec<_>>() {
            let key = LeaseKey { stream: self.key().stream.clone(), shard: other.clone() };
            match self.tools.read(self.tools.store.get(&key)).await {
                Ok(Some(_)) => {}
                Ok(None) => match self.list().await {
                    Some(list) if list.names(&child.id) && !list.names(other) => {}
                    Some(_) => return Some("the other parent of the merged shard has no row yet"),
                    None => return Some("the shards can't be listed"),
                },
                Err(_) => return Some("the row of the other parent can't be read"),
            }
        }
        None
    }
}

/// Pairs a shard with each of its parents.
fn edges(child: &ChildShard) -> impl Iterator<Item = (&ChildShard, &ShardId)> {
    child.parents.iter().map(move |parent| (child, parent))
}
