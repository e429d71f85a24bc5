//! A lease store behind the network: calls fail, are lost, or are carried out late.

use super::kind::FaultKind;
use super::network::{CallResult, HostLink};
use super::partial_commits::{CommitPart, PartialCommit, RowBefore, TransactionRow};
use super::refusal::RefusalKind;
use crate::history::{History, HistoryEvent};
use anabranch::lease::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseKey, LeaseListing, WorkerId, WorkerRow, Write,
    WriteOutcome,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A lease store as one host reaches it.
pub struct FaultyStore<S> {
    /// The store itself. It answers at once; the network adds all latency.
    inner: Arc<S>,
    link: HostLink,
    /// Records writes when they are applied.
    history: History,
}

impl<S> Clone for FaultyStore<S> {
    fn clone(&self) -> Self {
        let (link, history) = (self.link.clone(), self.history.clone());
        Self { inner: Arc::clone(&self.inner), link, history }
    }
}

impl<S: LeaseStore> FaultyStore<S> {
    /// Wraps `inner` so that it is reached over `link`.
    pub fn new(inner: Arc<S>, link: HostLink, history: History) -> Self {
        Self { inner, link, history }
    }

    /// Returns the rows of a stream, either current or as a scan shows them.
    async fn rows(&self, stream: &StreamName, scans: bool) -> Result<LeaseListing, StoreError> {
        let _looking = self.link.begin_poll();
        let (stream, link) = (stream.clone(), self.link.clone());
        let list = move |store: &S| {
            let rows = at_once(store.list(&stream))?;
            let rows = link.lags(|lags| lags.list(stream.as_str(), rows));
            let rows = if scans {
                LeaseListing { rows: link.scan(&stream, rows.rows), ..rows }
            } else {
                rows
            };
            Ok(link.readable_list(rows))
        };
        if !self.link.tears() {
            return self.read(list).await;
        }
        let (early, late) = (Arc::clone(&self.inner), Arc::clone(&self.inner));
        let again = list.clone();
        let begin = move || list(&early);
        let (history, link) = (self.history.clone(), self.link.clone());
        let end = move |first: Result<LeaseListing, StoreError>| {
            let (first, second) = (first?, again(&late)?);
            let (first_was, second_was) = (first.clone(), second.clone());
            let torn = torn_list(first, second);
            if torn != first_was && torn != second_was {
                link.count(FaultKind::TornList);
                let host = link.host();
                history.note_world(format!("a list of {host} mixes rows of two moments"));
            }
            Ok(torn)
        };
        match self.link.carry_in_two(begin, end).await {
            CallResult::Answered(reply) => reply,
            other => Err(trouble(&other)),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&S) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        match self.link.carry(move || ask(&inner)).await {
            CallResult::Answered(reply) => reply,
            other => Err(trouble(&other)),
        }
    }
}

impl<S: LeaseStore> LeaseStore for FaultyStore<S> {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.read(|store| at_once(store.prepare())).await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.read(|store| at_once(store.application())).await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        let _looking = self.link.begin_poll();
        let link = self.link.clone();
        self.read(move |store| {
            let look = at_once(store.poll())?;
            Ok(link.readable_look(link.lags(|lags| lags.look(look))))
        })
        .await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.rows(stream, false).await
    }

    /// A scan in KCL's layout is eventually consistent.
    async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        let scans = self.layout() == Layout::Kcl;
        let mut rows = BTreeMap::new();
        for stream in streams {
            rows.insert(stream.clone(), self.rows(stream, scans).await?);
        }
        Ok(rows)
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let (key, link) = (key.clone(), self.link.clone());
        self.read(move |store| {
            let row = at_once(store.get(&key))?;
            let row = link.lags(|lags| lags.lease(&key, row));
            row.map(|row| link.reads(&TransactionRow::Lease(key)).map(|()| row)).transpose()
        })
        .await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        let (id, link) = (id.clone(), self.link.clone());
        self.read(move |store| {
            let row = at_once(store.worker(&id))?;
            let row = link.lags(|lags| lags.worker(&id, row));
            row.map(|row| link.reads(&TransactionRow::Worker(id)).map(|()| row)).transpose()
        })
        .await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let landing = PendingWrite {
            inner: Arc::clone(&self.inner),
            history: self.history.clone(),
            link: self.link.clone(),
            write: write.clone(),
            slowly: self.link.commits_slowly().filter(|_| self.layout() == Layout::Native),
        };
        let (again_ms, hold_ms) =
            (self.link.repeats(), landing.slowly.map_or(0, |slowly| slowly.for_ms));
        let arrives = move || {
            if let Some(again_ms) = again_ms {
                let copy = landing.clone();
                landing.link.later(again_ms, move || drop(copy.apply_again()));
            }
            landing.apply()
        };
        match self.link.carry_held(arrives, |reply| reply, hold_ms).await {
            CallResult::Answered(reply) => reply,
            CallResult::Silent => Ok(WriteOutcome::Unknown),
            other => Err(trouble(&other)),
        }
    }
}

/// A write in flight.
struct PendingWrite<S> {
    inner: Arc<S>,
    history: History,
    link: HostLink,
    write: Write,
    /// Delay until it is fully visible, if any.
    slowly: Option<PartialCommit>,
}

impl<S> Clone for PendingWrite<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            history: self.history.clone(),
            link: self.link.clone(),
            write: self.write.clone(),
            slowly: self.slowly,
        }
    }
}

impl<S: LeaseStore> PendingWrite<S> {
    fn apply(&self) -> Result<WriteOutcome, StoreError> {
        let row = TransactionRow::of(&self.write);
        if row.as_ref().is_some_and(|row| self.link.lags(|lags| lags.has(row))) {
            return Err(RefusalKind::Busy.of_store());
        }
        self.reads()?;
        self.note_past()?;
        let slowly = self.slowly.zip(row);
        let before = slowly.is_some().then(|| self.current_row()).transpose()?;
        let outcome = at_once(self.inner.write(&self.write))?;
        if let (Some((slowly, of)), Some((version, row))) = (slowly, before)
            && at_once(self.inner.poll())?.version != version
        {
            let part = CommitPart { of, shown: slowly.row_is_late.then_some(row) };
            self.link.lag(slowly.for_ms, part);
            let late = if slowly.row_is_late { "row" } else { "version" };
            let words = format!("the {late} of what follows shows {} ms late", slowly.for_ms);
            self.history.note_world(words);
        }
        let (write, host) = (self.write.clone(), self.link.host());
        self.history.note(host, HistoryEvent::WriteApplied { write, outcome: outcome.clone() });
        Ok(outcome)
    }

    /// Returns an error if the row of the write exists and is unreadable.
    fn reads(&self) -> Result<(), StoreError> {
        let there = match &self.write {
            Write::Lease { key, .. } => at_once(self.inner.get(key))?.is_some(),
            Write::Worker { id, .. } => at_once(self.inner.worker(id))?.is_some(),
            Write::Stream { .. } => false,
        };
        match TransactionRow::of(&self.write).filter(|_| there) {
            Some(row) => self.link.reads(&row),
            None => Ok(()),
        }
    }

    /// Records the current state of a row of KCL's table, for scans that show old rows.
    fn note_past(&self) -> Result<(), StoreError> {
        if let Write::Lease { key, .. } = &self.write
            && self.inner.layout() == Layout::Kcl
        {
            self.link.changes(key.clone(), at_once(self.inner.get(key))?.map(Box::new));
        }
        Ok(())
    }

    fn apply_again(&self) -> Result<WriteOutcome, StoreError> {
        self.link.count(FaultKind::Twice);
        self.history.note_world(format!("a write of {} arrives again", self.link.host()));
        self.apply()
    }

    /// Returns the current version and row.
    fn current_row(&self) -> Result<(Option<u64>, RowBefore), StoreError> {
        let version = at_once(self.inner.poll())?.version;
        let row = match &self.write {
            Write::Worker { id, .. } => {
                RowBefore::Worker(at_once(self.inner.worker(id))?.map(Box::new))
            }
            Write::Lease { key, .. } => {
                RowBefore::Lease(at_once(self.inner.get(key))?.map(Box::new))
            }
            Write::Stream { .. } => RowBefore::Lease(None),
        };
        Ok((version, row))
    }
}

/// Returns a list whose first half is from `first` and whose second half is from the later
/// `second`.
fn torn_list(first: LeaseListing, second: LeaseListing) -> LeaseListing {
    let Some(middle) = first.rows.get(first.rows.len() / 2).map(|lease| lease.key.clone()) else {
        return second;
    };
    let mut torn = first;
    torn.rows.retain(|lease| lease.key < middle);
    torn.unreadable.retain(|row| row.key < middle.shard);
    torn.rows.extend(second.rows.into_iter().filter(|lease| lease.key >= middle));
    torn.unreadable.extend(second.unreadable.into_iter().filter(|row| row.key >= middle.shard));
    torn
}

fn trouble<T>(how: &CallResult<Result<T, StoreError>>) -> StoreError {
    let store = "sim".to_owned();
    match how {
        CallResult::Refused(why) => why.of_store(),
        CallResult::Throttled => {
            StoreError::Throttled { store, detail: "the simulator's weather".to_owned() }
        }
        _ => StoreError::Unreachable {
            store,
            detail: "the simulator's weather".to_owned(),
            source: None,
        },
    }
}

/// Returns the result of a future that is ready at once.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply,
        Poll::Pending => unreachable!("what stands behind the network answers at once"),
    }
}
