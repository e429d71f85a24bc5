//! The end of a shard: creates the rows of its children, notes their names, and writes the end.

use super::LeaseHandle;
use super::own_row::OwnRowWrite;
use crate::event::LeaseEvent;
use crate::lease::write_retry::WriteResult;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ChildShard, ShardFilter, StreamApi};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Layout, LeaseChange, LeaseKey, NewLease, Write, WriteRefusal};
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::position::Position;

const NO_ROW_YET: &str = "the other parent of the merged shard has no lease row yet";

/// The result of writing a shard's end.
#[derive(Debug)]
#[must_use]
pub enum ShardEndResult {
    /// The row is at the shard's end, and its children have rows.
    Done,
    /// The end can't be written yet. Try again after a pause.
    NotYet {
        /// The reason for the delay.
        why: &'static str,
    },
    /// The lease is lost.
    Lost,
    /// The store rejected the write permanently.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    /// Writes that every record of the shard is done. `children` are those that the last read
    /// named. If it named none, one shard list must name all of them.
    ///
    /// Children prove that the shard is closed, not that it was read to its end: the caller must
    /// have proof of that. A read that names children is proof. A read that names none may be
    /// wrong. It is proof if it began after a list had named all children, which is what
    /// [`Consumer`](crate::consumer::Consumer) waits for.
    pub async fn end(&self, children: &[ChildShard]) -> ShardEndResult {
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
        match self.rows_of(children).await {
            Ok(rows) => self.write_end(rows).await,
            Err(why) => ShardEndResult::NotYet { why },
        }
    }

    /// Returns the rows to create for the children, or the reason why they must wait.
    async fn rows_of(&self, children: &[ChildShard]) -> Result<Vec<NewLease>, &'static str> {
        let mut rows = Vec::new();
        for child in children {
            match self.successors_of_missing(child).await? {
                Some(heirs) => rows.extend(heirs),
                None => rows.push(NewLease {
                    shard: child.id.clone(),
                    parents: child.parents.clone(),
                    range: child.range,
                    checkpoint: Position::TrimHorizon,
                }),
            }
        }
        Ok(rows)
    }

    /// Creates the rows of the successors, notes their names on the row, and then writes the end.
    pub(in crate::lease) async fn write_end(&self, heirs: Vec<NewLease>) -> ShardEndResult {
        let names: Vec<ShardId> = heirs.iter().map(|heir| heir.shard.clone()).collect();
        for heir in heirs {
            let write = heir.create(&self.key().stream, self.context.rng.nonce());
            match self.context.write(&write, || self.held.heartbeat().expires_at_ms()).await {
                // A row that can't be read exists too.
                WriteResult::Applied(_)
                | WriteResult::Refused { why: WriteRefusal::Exists, .. }
                | WriteResult::Failed(StoreError::UnreadableRow { .. }) => {}
                settled => return self.not_ended(settled),
            }
        }
        let note = LeaseChange::NoteChildren(names.clone());
        let write = Write::lease(self.key(), note, self.context.rng.nonce());
        match self.context.write(&write, || self.held.heartbeat().expires_at_ms()).await {
            WriteResult::Applied(_) => {}
            settled => return self.not_ended(settled),
        }
        let mut row = self.held.row().await;
        loop {
            let write = row.hold.end(row.checkpoint.clone(), self.context.rng.nonce());
            match self.held.write_row(&self.context, &mut row, &write).await {
                OwnRowWrite::Done => {
                    let key = self.key().clone();
                    self.context.emit(LeaseEvent::ShardEnded { lease: key, children: names });
                    return ShardEndResult::Done;
                }
                OwnRowWrite::CheckpointMoved => {}
                OwnRowWrite::Lost | OwnRowWrite::Rejected => return ShardEndResult::Lost,
                OwnRowWrite::Failed(error) => return ShardEndResult::Failed(error),
            }
        }
    }

    fn not_ended(&self, settled: WriteResult) -> ShardEndResult {
        match settled {
            WriteResult::Failed(error) if !error.is_retryable() => ShardEndResult::Failed(error),
            _ => {
                self.held.mark_lost();
                ShardEndResult::Lost
            }
        }
    }

    /// Lists the children, for services that don't name them at the end of a read.
    async fn listed_children(&self) -> Result<Vec<ChildShard>, ShardEndResult> {
        let key = self.key();
        let lineage = self.list().await;
        let lineage =
            lineage.ok_or(ShardEndResult::NotYet { why: "the shards cannot be listed" })?;
        // An end without all children would leave keys without a reader.
        let Some(children) = lineage.followers(&key.shard, self.lease().range.as_ref()) else {
            return Err(ShardEndResult::NotYet {
                why: "the shard list does not contain all of its \
                                                      children yet",
            });
        };
        let child = |shard: &Shard| ChildShard {
            id: shard.id.clone(),
            parents: shard.parents().cloned().collect(),
            range: shard.range,
        };
        Ok(children.into_iter().map(child).collect())
    }

    /// Requests a full list of the shards.
    async fn list(&self) -> Option<Lineage> {
        let (stream, api) = (&self.key().stream, &self.context.api);
        let list =
            self.context.call_stream(stream, api.list_shards(stream, ShardFilter::All)).await;
        list.ok().map(|list| Lineage::new(list.shards))
    }

    /// Returns the rows to create in place of a child that is gone, or `None` if the child's own
    /// row is to be created.
    ///
    /// KCL's workers start a merged child whose other parent has no row. So the child's row must
    /// not be created before that parent's row, unless the parent is trimmed: its row was removed
    /// or never created, and nothing of it is left to read. A list that names the child and lacks
    /// the parent proves that.
    ///
    /// A list that proves that the child itself is gone proves it too, because the child was
    /// created after the parent's end. Unread records of such a child are lost, and its successors
    /// get rows in its place.
    async fn successors_of_missing(
        &self,
        child: &ChildShard,
    ) -> Result<Option<Vec<NewLease>>, &'static str> {
        if self.context.store.layout() == Layout::Native {
            return Ok(None);
        }
        let missing = self.other_parents_without_row(child).await?;
        if missing.is_empty() {
            return Ok(None);
        }
        let (stream, now_ms) = (&self.key().stream, || self.context.clock.now_ms());
        let list = self.context.shard_lists.get(stream, now_ms, self.list()).await;
        let list = list.ok_or("the shards cannot be listed")?;
        if list.names(&child.id) {
            let waits = missing.iter().any(|parent| list.names(parent));
            return if waits { Err(NO_ROW_YET) } else { Ok(None) };
        }
        let heirs = list.successors(&child.id, Some(&child.range)).ok_or(NO_ROW_YET)?;
        // Checked after the list: a parent whose row was created meanwhile may still be read.
        if self.other_parents_without_row(child).await? != missing {
            return Err(NO_ROW_YET);
        }
        // If the child has a row, its reader finds out by itself.
        if self.has_row(&child.id).await? {
            return Ok(None);
        }
        let heirs: Vec<_> = heirs.into_iter().map(NewLease::child).collect();
        let lease = LeaseKey { stream: stream.clone(), shard: child.id.clone() };
        let names = heirs.iter().map(|heir| heir.shard.clone()).collect();
        self.context.emit(LeaseEvent::ShardMissing { lease, successors: names });
        Ok(Some(heirs))
    }

    async fn other_parents_without_row<'a>(
        &self,
        child: &'a ChildShard,
    ) -> Result<Vec<&'a ShardId>, &'static str> {
        let mut missing = Vec::new();
        for parent in child.parents.iter().filter(|parent| **parent != self.key().shard) {
            if !self.has_row(parent).await? {
                missing.push(parent);
            }
        }
        Ok(missing)
    }

    async fn has_row(&self, shard: &ShardId) -> Result<bool, &'static str> {
        let key = LeaseKey { stream: self.key().stream.clone(), shard: shard.clone() };
        let row = self.context.read_store(self.context.store.get(&key)).await;
        row.map(|row| row.is_some()).map_err(|_| "the lease row of another shard cannot be read")
    }
}
