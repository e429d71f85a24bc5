//! The native layout on DynamoDB.
//!
//! A write that changes the plan is a transaction: the row under its condition, and one part of the
//! version. Heartbeats, checkpoints and notes are single writes.
//!
//! Before a worker's row is deleted, a scan checks that no lease names the worker. This check is
//! not part of the write's condition, because DynamoDB has no condition on the absence of rows. A
//! lease that names the worker in between has an owner without a row: others watch it for a lease
//! time and then take it.

pub(in crate::lease) mod keys;
pub(in crate::lease) mod row;
mod request;

use super::expression::{Expression, WriteRequest};
use super::failure::store_name;
use super::item::{AttributeMap, ItemFields, MalformedItem};
use super::table::{DynamoTable, ItemAfter, WriteAttempt};
use crate::lease::StoreError;
use crate::lease::store::StorePoll;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::table::native as rules;
use anabranch_model::lease::{
    ApplicationFacts, Lease, LeaseChange, LeaseKey, LeaseListing, Nonce, StoredRow, StreamChange,
    StreamFacts, UnreadableRow, WorkerChange, WorkerId, WorkerRow, Write, WriteOutcome,
    WriteRefusal,
};
use aws_sdk_dynamodb::types::AttributeValue;
use keys::PartitionRow;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The format of the rows that this version writes.
const FORMAT: u64 = 1;
const FORMAT_NUMBER: &str = "format";
/// The oldest format whose workers may use tables of [`FORMAT`]. Such workers leave unknown
/// attributes unchanged. A format for which that is not enough must raise this number.
const MIN_READER: u64 = 1;
const MIN_READER_NUMBER: &str = "min_reader";

/// Attribute of the format row: backups were switched on once. After that they are up to the
/// operator.
const BACKUPS: &str = "backups";

const _: () = assert!(MIN_READER <= FORMAT);
/// Maximum number of attempts to write a row that others keep changing.
const TRIES: u32 = 10;

/// The rows of one application in the native layout. Clones share everything.
#[derive(Clone, Debug)]
pub(in crate::lease) struct NativeRows {
    pub(in crate::lease) table: DynamoTable,
    /// One lock per part of the version, so that this process does not conflict with itself.
    parts: Arc<[Mutex<()>]>,
}

/// The target of a write: how its row is read, and how the rules judge it.
trait WriteSubject {
    fn key(&self) -> AttributeMap;
    fn request(&self) -> Option<WriteRequest>;
    fn stored(&self, item: Option<&AttributeMap>) -> Result<StoredRow, MalformedItem>;
    /// Returns the part of the condition that is false for this row.
    fn refusal(&self, row: &StoredRow) -> Option<WriteRefusal>;
    /// Returns true if this row, read after the write was applied, can be reported as the row after
    /// it.
    fn is_after(&self, row: &StoredRow) -> bool;
}

impl NativeRows {
    pub(in crate::lease) fn new(table: DynamoTable) -> Self {
        let parts = (0..keys::VERSION_PARTS).map(|_| Mutex::new(())).collect();
        Self { table, parts }
    }

    /// Writes the format of a new table. Refuses a table of a later format, unless that format
    /// permits this version. So a worker of the previous release can be restarted during a deploy.
    pub(in crate::lease) async fn check_format(&self) -> Result<(), StoreError> {
        let mut item = keys::format();
        item.insert(FORMAT_NUMBER.into(), super::item::number(FORMAT));
        item.insert(MIN_READER_NUMBER.into(), super::item::number(MIN_READER));
        loop {
            if let Some(found) = self.table.get(keys::format()).await? {
                let number = ItemFields(&found).need_number(FORMAT_NUMBER);
                let number = number.map_err(|why| self.unreadable("format", &why))?;
                let oldest = ItemFields(&found).number(MIN_READER_NUMBER);
                let oldest = oldest.map_err(|why| self.unreadable("format", &why))?;
                let later = number > FORMAT && oldest.is_some_and(|oldest| oldest <= FORMAT);
                let usable = number == FORMAT || later;
                return if usable { Ok(()) } else { Err(self.other_format(number)) };
            }
            let request = WriteRequest::create(keys::format(), item.clone());
            if let WriteAttempt::Applied(_) = self.table.write(&request, None).await? {
                return Ok(());
            }
        }
    }

    /// Switches backups on, unless that was done before. A new table is not ready without them. On
    /// an existing table a failure only logs a warning.
    pub(in crate::lease) async fn keep_backups_once(&self, is_new: bool) -> Result<(), StoreError> {
        let format = self.table.get(keys::format()).await?;
        if format.is_some_and(|row| ItemFields(&row).has(BACKUPS)) {
            return Ok(());
        }
        if let Err(error) = self.table.keep_backups().await {
            if is_new {
                return Err(error);
            }
            tracing::warn!(%error, "cannot enable point-in-time recovery for the lease table");
            return Ok(());
        }
        let done = Expression::default().set(BACKUPS, AttributeValue::Bool(true));
        // If the note is lost, the next start finds the backups on and writes it.
        let _noted = self.table.write(&WriteRequest::update(keys::format(), done), None).await?;
        Ok(())
    }

    fn other_format(&self, found: u64) -> StoreError {
        let detail = format!(
            "its rows have format {found}, but this version supports format {FORMAT}; use the \
             version that created them, or another table"
        );
        StoreError::ForeignSchema { store: self.table.store(), detail }
    }

    pub(in crate::lease) async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        let mut application = ApplicationFacts::default();
        for item in self.table.query(keys::application()).await? {
            match self.row_of(&item)? {
                Some(PartitionRow::Stream(name)) => match row::stream(&item) {
                    Ok(facts) => drop(application.streams.insert(name.into(), facts)),
                    Err(MalformedItem(why)) => {
                        application.unreadable.push(UnreadableRow { key: name.into(), why });
                    }
                },
                Some(PartitionRow::Version) => application.version += self.version_part(&item)?,
                _ => {}
            }
        }
        Ok(application)
    }

    pub(in crate::lease) async fn look(&self) -> Result<StorePoll, StoreError> {
        let (mut version, mut workers, mut unreadable) = (0, Vec::new(), Vec::new());
        for item in self.table.query(keys::poll()).await? {
            match self.row_of(&item)? {
                Some(PartitionRow::Version) => version += self.version_part(&item)?,
                Some(PartitionRow::Worker(id)) => match row::worker(id, &item) {
                    Ok(worker) => workers.push(worker),
                    Err(MalformedItem(why)) => {
                        unreadable.push(UnreadableRow { key: id.into(), why });
                    }
                },
                _ => {}
            }
        }
        Ok(StorePoll { version: Some(version), workers, unreadable })
    }

    pub(in crate::lease) async fn list(
        &self,
        stream: &StreamName,
    ) -> Result<LeaseListing, StoreError> {
        let items = self.table.query(keys::leases(stream)).await?;
        let mut listing = LeaseListing::default();
        for item in &items {
            let shard = row::sort(item).map_err(|why| self.unreadable(stream.as_str(), &why))?;
            let key = LeaseKey { stream: stream.clone(), shard: shard.into() };
            match row::lease(&key, item) {
                Ok(lease) => listing.rows.push(lease),
                Err(MalformedItem(why)) => {
                    listing.unreadable.push(UnreadableRow { key: key.shard, why });
                }
            }
        }
        Ok(listing)
    }

    pub(in crate::lease) async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let item = self.table.get(keys::lease(key)).await?;
        let lease = item.map(|item| row::lease(key, &item)).transpose();
        lease.map_err(|why| self.unreadable(&key.to_string(), &why))
    }

    pub(in crate::lease) async fn worker(
        &self,
        id: &WorkerId,
    ) -> Result<Option<WorkerRow>, StoreError> {
        let item = self.table.get(keys::worker(id)).await?;
        let worker = item.map(|item| row::worker(id.as_str(), &item)).transpose();
        worker.map_err(|why| self.unreadable(id.as_str(), &why))
    }

    pub(in crate::lease) async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let bumps = write.changes_plan();
        match write {
            Write::Lease { key, change, nonce } => {
                let subject = LeaseWriteSubject { key, change, nonce: *nonce };
                self.execute(&subject, bumps.then_some(nonce.0)).await
            }
            Write::Worker { id, change, nonce } => {
                let subject = WorkerWriteSubject { id, change, nonce: *nonce };
                if *change == WorkerChange::Delete
                    && let Some(refused) = self.still_named(&subject).await?
                {
                    return Ok(refused);
                }
                self.execute(&subject, bumps.then_some(nonce.0)).await
            }
            Write::Stream { stream, change } => {
                let subject = StreamWriteSubject { stream, change: *change };
                self.execute(&subject, bumps.then_some(0)).await
            }
        }
    }

    /// Sends a write and returns its outcome. With `part`, that part of the version moves in the
    /// same transaction.
    async fn execute<T: WriteSubject + Sync>(
        &self,
        subject: &T,
        part: Option<u64>,
    ) -> Result<WriteOutcome, StoreError> {
        let Some(request) = subject.request() else {
            return match self.refused(subject, None).await? {
                Some(refused) => Ok(refused),
                None => Err(self.busy()),
            };
        };
        let bump = part.map(keys::bump);
        for _ in 0..TRIES {
            let _turn = match part {
                Some(part) => Some(self.next_version_part(part).await),
                None => None,
            };
            match self.table.write(&request, bump.as_ref()).await? {
                WriteAttempt::Lost => return Ok(WriteOutcome::Unknown),
                WriteAttempt::Applied(after) => return Ok(self.applied(subject, after).await),
                WriteAttempt::Refused(old) => {
                    if let Some(refused) = self.refused(subject, old).await? {
                        return Ok(refused);
                    }
                }
            }
        }
        Err(self.busy())
    }

    async fn next_version_part(&self, part: u64) -> tokio::sync::MutexGuard<'_, ()> {
        let part = usize::try_from(part % keys::VERSION_PARTS).unwrap_or(0);
        self.parts[part].lock().await
    }

    /// Returns the outcome of an applied write. A transaction does not return its rows, so the row
    /// is read. If others have changed it so far that it no longer proves the write, the outcome is
    /// `Unknown`, and the caller reads back.
    async fn applied<T: WriteSubject + Sync>(&self, subject: &T, after: ItemAfter) -> WriteOutcome {
        let row = match after {
            ItemAfter::Absent => return WriteOutcome::Done(StoredRow::Absent),
            ItemAfter::Item(item) => subject.stored(Some(&item)),
            ItemAfter::Unseen => match self.table.get(subject.key()).await {
                Ok(item) => subject.stored(item.as_ref()),
                Err(_) => return WriteOutcome::Unknown,
            },
        };
        match row {
            Ok(row) if subject.is_after(&row) => WriteOutcome::Done(row),
            _ => WriteOutcome::Unknown,
        }
    }

    /// Returns the refusal of a write, or `None` if the row has changed since, so that the
    /// condition would be true.
    async fn refused<T: WriteSubject + Sync>(
        &self,
        subject: &T,
        old: Option<AttributeMap>,
    ) -> Result<Option<WriteOutcome>, StoreError> {
        // The reply had no row: there is none, or the service does not return it.
        let item = match old {
            Some(item) => Some(item),
            None => self.table.get(subject.key()).await?,
        };
        let row = subject.stored(item.as_ref());
        let row = row.map_err(|why| self.unreadable(&format!("{:?}", subject.key()), &why))?;
        let refusal = subject.refusal(&row);
        Ok(refusal.map(|why| WriteOutcome::Refused { why, now: Some(row) }))
    }

    /// Returns the refusal of a worker's removal, if its row must stay.
    async fn still_named(
        &self,
        subject: &WorkerWriteSubject<'_>,
    ) -> Result<Option<WriteOutcome>, StoreError> {
        if let Some(refused) = self.refused(subject, None).await? {
            return Ok(Some(refused));
        }
        if self.table.scan(keys::leases_of(subject.id)).await?.is_empty() {
            return Ok(None);
        }
        let now = self.worker(subject.id).await?;
        let now = Some(StoredRow::of_worker(now.as_ref()));
        Ok(Some(WriteOutcome::Refused { why: WriteRefusal::StillReferenced, now }))
    }

    fn row_of<'a>(&self, item: &'a AttributeMap) -> Result<Option<PartitionRow<'a>>, StoreError> {
        let sort = row::sort(item).map_err(|why| self.unreadable("app", &why))?;
        Ok(PartitionRow::of(sort))
    }

    fn version_part(&self, item: &AttributeMap) -> Result<u64, StoreError> {
        let part = ItemFields(item).need_number(keys::VERSION_PART);
        part.map_err(|why| self.unreadable("version", &why))
    }

    fn busy(&self) -> StoreError {
        let detail = format!("the row changed during each of {TRIES} attempts to write it");
        StoreError::Busy { store: self.table.store(), detail }
    }

    fn unreadable(&self, row: &str, why: &MalformedItem) -> StoreError {
        let (store, detail) = (store_name(&self.table.name), why.to_string());
        StoreError::UnreadableRow { store, row: row.to_owned(), detail }
    }
}

struct LeaseWriteSubject<'a> {
    key: &'a LeaseKey,
    change: &'a LeaseChange,
    nonce: Nonce,
}

impl WriteSubject for LeaseWriteSubject<'_> {
    fn key(&self) -> AttributeMap {
        keys::lease(self.key)
    }

    fn request(&self) -> Option<WriteRequest> {
        request::lease(self.key, self.change, self.nonce)
    }

    fn stored(&self, item: Option<&AttributeMap>) -> Result<StoredRow, MalformedItem> {
        let lease = item.map(|item| row::lease(self.key, item)).transpose()?;
        Ok(StoredRow::of_lease(lease.as_ref()))
    }

    fn refusal(&self, row: &StoredRow) -> Option<WriteRefusal> {
        let lease = if let StoredRow::Lease(lease) = row { Some(&**lease) } else { None };
        rules::lease_after(self.key, self.change, self.nonce, lease).err()
    }

    /// The same term means the same period of ownership. Whatever was written since, the owner is
    /// the one that this write left, and its effects stand.
    fn is_after(&self, row: &StoredRow) -> bool {
        let StoredRow::Lease(lease) = row else { return false };
        lease.nonce == self.nonce
            || match self.change {
                LeaseChange::Take { term, .. }
                | LeaseChange::Release { term, .. }
                | LeaseChange::HandOver { term, .. } => lease.term == term.saturating_add(1),
                LeaseChange::RequestHandOver { term, .. }
                | LeaseChange::WithdrawRequest { term, .. }
                | LeaseChange::RefuseHandOver { term, .. }
                | LeaseChange::AllowHandOver { term, .. }
                | LeaseChange::End { term, .. } => lease.term == *term,
                _ => false,
            }
    }
}

struct WorkerWriteSubject<'a> {
    id: &'a WorkerId,
    change: &'a WorkerChange,
    nonce: Nonce,
}

impl WriteSubject for WorkerWriteSubject<'_> {
    fn key(&self) -> AttributeMap {
        keys::worker(self.id)
    }

    fn request(&self) -> Option<WriteRequest> {
        request::worker(self.id, self.change, self.nonce)
    }

    fn stored(&self, item: Option<&AttributeMap>) -> Result<StoredRow, MalformedItem> {
        let worker = item.map(|item| row::worker(self.id.as_str(), item)).transpose()?;
        Ok(StoredRow::of_worker(worker.as_ref()))
    }

    fn refusal(&self, row: &StoredRow) -> Option<WriteRefusal> {
        let worker = if let StoredRow::Worker(worker) = row { Some(worker) } else { None };
        rules::worker_after(self.id, self.change, self.nonce, worker).err()
    }

    fn is_after(&self, row: &StoredRow) -> bool {
        matches!(row, StoredRow::Worker(worker) if worker.nonce == self.nonce)
    }
}

struct StreamWriteSubject<'a> {
    stream: &'a StreamName,
    change: StreamChange,
}

impl WriteSubject for StreamWriteSubject<'_> {
    fn key(&self) -> AttributeMap {
        keys::stream(self.stream)
    }

    fn request(&self) -> Option<WriteRequest> {
        request::stream(self.stream, self.change)
    }

    fn stored(&self, item: Option<&AttributeMap>) -> Result<StoredRow, MalformedItem> {
        let facts: Option<StreamFacts> = item.map(row::stream).transpose()?;
        Ok(StoredRow::of_stream(facts.as_ref()))
    }

    fn refusal(&self, row: &StoredRow) -> Option<WriteRefusal> {
        let facts = if let StoredRow::Stream(facts) = row { Some(facts) } else { None };
        rules::stream_after(self.change, facts).err()
    }

    /// Facts never change, except for the mark, which stays.
    fn is_after(&self, row: &StoredRow) -> bool {
        matches!(row, StoredRow::Stream(_))
    }
}
