//! A lease store behind the network: calls fail, are lost, or are carried out late.

use super::network::{Carried, Link};
use crate::history::{History, What};
use anabranch::lease::{LeaseStore, Look, StoreError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Application, Layout, Lease, LeaseKey, Outcome, Worker, WorkerId, Write,
};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A lease store as one host reaches it.
pub struct FaultyStore<S> {
    /// The store itself. It answers at once; all waiting is the network's.
    inner: Arc<S>,
    /// The way to it.
    link: Link,
    /// Where writes are noted as they land.
    history: History,
}

impl<S> Clone for FaultyStore<S> {
    fn clone(&self) -> Self {
        let (link, history) = (self.link.clone(), self.history.clone());
        Self { inner: Arc::clone(&self.inner), link, history }
    }
}

impl<S: LeaseStore> FaultyStore<S> {
    /// The store, reached over `link`.
    pub fn new(inner: Arc<S>, link: Link, history: History) -> Self {
        Self { inner, link, history }
    }

    async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&S) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        match self.link.carry(move || ask(&inner)).await {
            Carried::Answered(reply) => reply,
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

    async fn application(&self) -> Result<Application, StoreError> {
        self.read(|store| at_once(store.application())).await
    }

    async fn look(&self) -> Result<Look, StoreError> {
        let _looking = self.link.begin_look();
        self.read(|store| at_once(store.look())).await
    }

    async fn list(&self, stream: &StreamName) -> Result<Vec<Lease>, StoreError> {
        let _looking = self.link.begin_look();
        let stream = stream.clone();
        if !self.link.tears() {
            return self.read(move |store| at_once(store.list(&stream))).await;
        }
        let (early, late) = (Arc::clone(&self.inner), Arc::clone(&self.inner));
        let again = stream.clone();
        let begin = move || at_once(early.list(&stream));
        let end = move |first: Result<Vec<Lease>, StoreError>| {
            Ok(torn(first?, at_once(late.list(&again))?))
        };
        match self.link.carry_in_two(begin, end).await {
            Carried::Answered(reply) => reply,
            other => Err(trouble(&other)),
        }
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let key = key.clone();
        self.read(move |store| at_once(store.get(&key))).await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, StoreError> {
        let id = id.clone();
        self.read(move |store| at_once(store.worker(&id))).await
    }

    async fn write(&self, write: &Write) -> Result<Outcome, StoreError> {
        let (inner, history) = (Arc::clone(&self.inner), self.history.clone());
        let (host, write) = (self.link.host(), write.clone());
        let land = move || {
            let outcome = at_once(inner.write(&write))?;
            history.note(host, What::Landed { write, outcome: outcome.clone() });
            Ok(outcome)
        };
        match self.link.carry(land).await {
            Carried::Answered(reply) => reply,
            Carried::Silent => Ok(Outcome::Unknown),
            other => Err(trouble(&other)),
        }
    }
}

/// The first half of a list as it was at one moment, the second as it was at a later one.
fn torn(first: Vec<Lease>, second: Vec<Lease>) -> Vec<Lease> {
    let Some(middle) = first.get(first.len() / 2).map(|lease| lease.key.clone()) else {
        return second;
    };
    let early = first.into_iter().filter(|lease| lease.key < middle);
    let late = second.into_iter().filter(|lease| lease.key >= middle);
    early.chain(late).collect()
}

fn trouble<T>(how: &Carried<Result<T, StoreError>>) -> StoreError {
    let store = "sim".to_owned();
    match how {
        Carried::Throttled => {
            StoreError::Throttled { store, detail: "the simulator's weather".to_owned() }
        }
        _ => StoreError::Unreachable {
            store,
            detail: "the simulator's weather".to_owned(),
            source: None,
        },
    }
}

/// The reply of a call that has nothing to wait for.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply,
        Poll::Pending => unreachable!("what stands behind the network answers at once"),
    }
}
