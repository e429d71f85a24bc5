//! A gate at which handlers wait, asleep or blocking their thread, until the test opens it.

use crate::world::{ConsumerFixture, pause};
use anabranch::consumer::{Delivery, HandlerError};
use std::future::{Future, Ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A gate, initially shut. A failing test opens it, so that no handler waits for ever.
pub(crate) struct HandlerGate {
    open: Arc<AtomicBool>,
    came: Arc<AtomicUsize>,
}

type GatedCall = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

impl HandlerGate {
    pub(crate) fn shut() -> Self {
        Self { open: Arc::default(), came: Arc::default() }
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Returns the number of calls that have reached the gate.
    pub(crate) fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    /// Returns a handler that sleeps at the gate with the records of `key`, and reports all records
    /// to the oracle.
    pub(crate) fn sleeper(
        &self,
        world: &ConsumerFixture,
        key: &'static str,
        by: &'static str,
    ) -> impl Fn(Delivery) -> GatedCall + Send + Sync + use<> {
        let (open, came) = (Arc::clone(&self.open), Arc::clone(&self.came));
        let note = Arc::new(world.note(by));
        move |record: Delivery| {
            let (open, came, note) = (Arc::clone(&open), Arc::clone(&came), Arc::clone(&note));
            Box::pin(async move {
                if record.partition_key.as_str() == key {
                    came.fetch_add(1, Ordering::SeqCst);
                    while !open.load(Ordering::SeqCst) {
                        pause(100).await;
                    }
                }
                note(record).await
            })
        }
    }

    /// Returns a similar handler that blocks its thread: its future cannot be dropped.
    pub(crate) fn blocker(
        &self,
        world: &ConsumerFixture,
        key: &'static str,
        by: &'static str,
    ) -> impl Fn(Delivery) -> Ready<Result<(), HandlerError>> + Send + Sync + use<> {
        let (open, came) = (Arc::clone(&self.open), Arc::clone(&self.came));
        let note = world.note(by);
        move |record: Delivery| {
            if record.partition_key.as_str() == key {
                came.fetch_add(1, Ordering::SeqCst);
                while !open.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            note(record)
        }
    }
}

impl Drop for HandlerGate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Builds a runtime with enough threads for handlers that block theirs.
pub(crate) fn threads(count: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(count).enable_all().build().unwrap()
}
