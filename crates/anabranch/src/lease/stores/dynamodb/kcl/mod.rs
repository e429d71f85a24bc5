//! KCL's table: the same rows that Java workers read and write.
//!
//! Java uses the legacy condition and update parameters. Here the same conditions and effects are
//! expressions, and the resulting rows can't be distinguished. Polls are eventually consistent, as
//! Java's are. Gates, first rows, audits and repairs read consistently.

mod stream_id;
pub(in crate::lease) mod keys;
mod row;
mod request;
mod scan_schedule;
mod probe;

pub use stream_id::{KclStreamId, ParseKclStreamIdError};

use super::item::{AttributeMap, ItemFields};
use super::provision::LEASE_KEY;
use super::table::{DynamoTable, ItemAfter, KeyRange, WriteAttempt};
use crate::lease::StoreError;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::table::kcl as rules;
use anabranch_model::lease::{
    Lease, LeaseChange, LeaseKey, LeaseListing, StoredRow, UnreadableRow, Write, WriteOutcome,
    WriteRefusal,
};
use anabranch_model::position::StartPosition;
use keys::{KclStreams, StreamOfTable};
use row::LeaseRowError;
pub(in crate::lease) use scan_schedule::ScanSchedule;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of attempts to write a row that others keep changing.
const TRIES: u32 = 10;

/// The rows of one application in KCL's layout. Clones share everything.
#[derive(Clone, Debug)]
pub(in crate::lease) struct KclRows {
    pub(in crate::lease) table: DynamoTable,
    pub(in crate::lease) streams: KclStreams,
    /// Start of the application: rows say `AT_TIMESTAMP` and leave the time to the workers.
    pub(in crate::lease) start: StartPosition,
    /// Start by stream, as set by the workers of this process. Takes precedence over `start`.
    pub(in crate::lease) starts: StartPositions,
    /// Bounds the rate of scans.
    pub(in crate::lease) pace: ScanSchedule,
}

/// Start of the application on each stream. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::lease) struct StartPositions(Arc<Mutex<BTreeMap<StreamName, StartPosition>>>);

impl StartPositions {
    /// Records a start at a time. Any other start is written on the rows themselves.
    pub(in crate::lease) fn note(&self, stream: &StreamName, start: StartPosition) {
        if let StartPosition::AtTimestamp(_) = start {
            self.lock().insert(stream.clone(), start);
        }
    }

    fn of(&self, stream: &StreamName) -> Option<StartPosition> {
        self.lock().get(stream).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamName, StartPosition>> {
        // Each change is one insertion, so a panic leaves a consistent map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KclRows {
    pub(in crate::lease) async fn list(
        &self,
        name: &StreamName,
    ) -> Result<LeaseListing, StoreError> {
        let stream = self.stream(name)?;
        // A filter would cost as much, and would leave out rows that have a lease's key and nothing
        // else.
        let items = self.table.scan(KeyRange::default()).await?;
        Ok(self.leases(&stream, items.iter().filter(|item| stream.has(item))))
    }

    /// Scans once for all streams: a filtered scan would cost as much for each of them.
    pub(in crate::lease) async fn list_recent(
        &self,
        names: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let range = KeyRange { may_be_old: true, ..KeyRange::default() };
        let (items, units) = self.table.scan_at_cost(range).await?;
        self.pace.scanned(items.len(), units);
        let mut of_stream: BTreeMap<Option<&str>, Vec<&AttributeMap>> = BTreeMap::new();
        for item in &items {
            of_stream.entry(self.streams.of_row(item)).or_default().push(item);
        }
        let mut rows = BTreeMap::new();
        for name in names {
            let stream = self.stream(name)?;
            let items = of_stream.get(&stream.id.as_deref()).into_iter().flatten().copied();
            rows.insert(name.clone(), self.leases(&stream, items));
        }
        Ok(rows)
    }

    fn leases<'a>(
        &self,
        stream: &StreamOfTable,
        items: impl Iterator<Item = &'a AttributeMap>,
    ) -> LeaseListing {
        let mut listing = LeaseListing::default();
        for item in items {
            let why = match self.read(stream, item) {
                Ok(lease) => {
                    listing.rows.push(lease);
                    continue;
                }
                Err(LeaseRowError::Malformed(why)) => why.to_string(),
                Err(LeaseRowError::Position(why)) => why,
                Err(LeaseRowError::Other) => row::NOT_OF_THIS_STREAM.to_owned(),
            };
            // A row without a shard's key is of another kind.
            if let Some(key) = stream.shard_of(item).filter(|shard| shard.index().is_some()) {
                listing.unreadable.push(UnreadableRow { key, why });
            }
        }
        listing.rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        listing.unreadable.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        listing
    }

    pub(in crate::lease) async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let stream = self.stream(&key.stream)?;
        let item = self.table.get(stream.key(key)).await?;
        self.lease(&stream, item.as_ref())
    }

    pub(in crate::lease) async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let Write::Lease { key, change, .. } = write else {
            return Ok(WriteOutcome::Refused { why: WriteRefusal::Unsupported, now: None });
        };
        let stream = self.stream(&key.stream)?;
        let mut seen = None;
        for _ in 0..TRIES {
            let start = self.start_of(&key.stream);
            let request = request::lease(&stream, key, change, seen.as_ref(), start);
            let attempt = match &request {
                Some(request) => self.table.write(request, None).await?,
                None => WriteAttempt::Refused(None),
            };
            seen = match attempt {
                WriteAttempt::Lost => return Ok(WriteOutcome::Unknown),
                WriteAttempt::Applied(after) => return Ok(self.applied(&stream, after)),
                // The reply had no row: there is none, or the service does not return it.
                WriteAttempt::Refused(None) => self.get(key).await?,
                WriteAttempt::Refused(item) => self.lease(&stream, item.as_ref())?,
            };
            if let Some(refused) = refused(key, change, seen.as_ref()) {
                return Ok(refused);
            }
        }
        let detail = format!("the row changed during each of {TRIES} attempts to write it");
        Err(StoreError::Busy { store: self.table.store(), detail })
    }

    fn applied(&self, stream: &StreamOfTable, after: ItemAfter) -> WriteOutcome {
        match after {
            ItemAfter::Absent => WriteOutcome::Done(StoredRow::Absent),
            ItemAfter::Unseen => WriteOutcome::Unknown,
            ItemAfter::Item(item) => match self.read(stream, &item) {
                Ok(lease) => WriteOutcome::Done(StoredRow::Lease(Box::new(lease))),
                Err(_) => WriteOutcome::Unknown,
            },
        }
    }

    fn read(&self, stream: &StreamOfTable, item: &AttributeMap) -> Result<Lease, LeaseRowError> {
        if !row::is_lease(item) || (stream.id.is_none() && ItemFields(item).has(row::STREAM_NAME)) {
            return Err(LeaseRowError::Other);
        }
        let key = stream.read_key(item)?;
        row::lease(&key, item, self.start_of(&key.stream))
    }

    fn start_of(&self, stream: &StreamName) -> StartPosition {
        self.starts.of(stream).unwrap_or(self.start)
    }

    /// Reads one lease that was requested by key. Here a row that can't be read is an error.
    fn lease(
        &self,
        stream: &StreamOfTable,
        item: Option<&AttributeMap>,
    ) -> Result<Option<Lease>, StoreError> {
        let Some(item) = item else { return Ok(None) };
        match self.read(stream, item) {
            Ok(lease) => Ok(Some(lease)),
            Err(LeaseRowError::Malformed(why)) => Err(self.unreadable(item, why.to_string())),
            Err(LeaseRowError::Position(why)) => Err(self.unreadable(item, why)),
            Err(LeaseRowError::Other) => {
                Err(self.unreadable(item, row::NOT_OF_THIS_STREAM.to_owned()))
            }
        }
    }

    fn stream(&self, name: &StreamName) -> Result<StreamOfTable, StoreError> {
        self.streams.stream(name).ok_or_else(|| StoreError::Unusable {
            store: self.table.store(),
            detail: format!(
                "the table is for several streams, but the `account:stream:creation time` of \
                 stream {name} is unknown: pass it to `kcl_multi_stream`"
            ),
        })
    }

    fn unreadable(&self, item: &AttributeMap, detail: String) -> StoreError {
        StoreError::UnreadableRow { store: self.table.store(), row: name_of(item), detail }
    }
}

/// Returns the refusal of a write, or `None` if the row has changed since, so that the condition
/// would be true.
fn refused(key: &LeaseKey, change: &LeaseChange, row: Option<&Lease>) -> Option<WriteOutcome> {
    let why = rules::lease_after(key, change, row).err()?;
    Some(WriteOutcome::Refused { why, now: Some(StoredRow::of_lease(row)) })
}

fn name_of(item: &AttributeMap) -> String {
    ItemFields(item).text(LEASE_KEY).ok().flatten().unwrap_or("?").to_owned()
}
