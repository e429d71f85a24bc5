//! Handlers as closures per record or per batch, and the execution of their calls.

use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use std::any::Any;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// Error type of handlers.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Handler error that is not the fault of the records: the handler is shutting down, or the
/// receiver of its results has gone.
///
/// The records are delivered again after a pause. The call does not count as an attempt of
/// [`OnError::DeadLetter`](crate::consumer::OnError::DeadLetter).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Interrupted {
    /// Reason of the interruption.
    pub why: String,
}

impl Interrupted {
    /// Creates the error with a reason.
    pub fn because(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

/// Handler of records. [`Consumer::each`](crate::consumer::Consumer::each) and
/// [`Consumer::batches`](crate::consumer::Consumer::batches) create one from a closure.
pub trait Handler: Send + Sync + 'static {
    /// Returns the maximum number of records per call.
    fn max_records(&self) -> usize;

    /// Handles records of one lane of one shard, in order. `lease_term` is the term of the shard's
    /// lease ([`Delivery::lease_term`]).
    ///
    /// After `Ok` the records are done and are not delivered again. After an error or a panic the
    /// same records are delivered again. The future may be dropped at any await, when the lease is
    /// lost or a stop exceeds its grace period.
    fn handle(
        &self,
        shard: &Arc<LeaseKey>,
        lease_term: u64,
        records: &[UserRecord],
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A record and the shard that it came from. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Stream and shard of the record.
    pub shard: Arc<LeaseKey>,
    /// Term of the lease under which the record is delivered; `None` without a lease, as from a
    /// [`Tail`](crate::tail::Tail) or a dead letter.
    ///
    /// The term is a fencing token: it grows whenever the shard's lease is taken, passed on or
    /// released. A store that remembers the highest term of a shard can reject a late write of an
    /// earlier owner.
    pub lease_term: Option<u64>,
    /// The record itself.
    pub record: UserRecord,
}

impl Deref for Delivery {
    type Target = UserRecord;

    fn deref(&self) -> &UserRecord {
        &self.record
    }
}

/// Records of one lane of one shard, in order; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Stream and shard of the records.
    pub shard: Arc<LeaseKey>,
    /// Term of the lease under which the records are delivered ([`Delivery::lease_term`]).
    pub lease_term: u64,
    /// Records in order; at least one.
    pub records: Vec<UserRecord>,
}

/// Handler that calls a closure for each record.
#[derive(Clone, Copy, Debug)]
pub struct PerRecord<F>(pub(in crate::consumer) F);

impl<F, T, E> Handler for PerRecord<F>
where
    F: Fn(Delivery) -> T + Send + Sync + 'static,
    T: Future<Output = Result<(), E>> + Send,
    E: Into<HandlerError>,
{
    fn max_records(&self) -> usize {
        1
    }

    async fn handle(
        &self,
        shard: &Arc<LeaseKey>,
        lease_term: u64,
        records: &[UserRecord],
    ) -> Result<(), HandlerError> {
        for record in records {
            let (shard, lease_term) = (Arc::clone(shard), Some(lease_term));
            let delivery = Delivery { shard, lease_term, record: record.clone() };
            (self.0)(delivery).await.map_err(Into::into)?;
        }
        Ok(())
    }
}

/// Handler that calls a closure for each batch.
#[derive(Clone, Copy, Debug)]
pub struct PerBatch<F> {
    pub(in crate::consumer) handle: F,
    /// Maximum number of records per call.
    pub(in crate::consumer) most: usize,
}

impl<F, T, E> Handler for PerBatch<F>
where
    F: Fn(Batch) -> T + Send + Sync + 'static,
    T: Future<Output = Result<(), E>> + Send,
    E: Into<HandlerError>,
{
    fn max_records(&self) -> usize {
        self.most
    }

    async fn handle(
        &self,
        shard: &Arc<LeaseKey>,
        lease_term: u64,
        records: &[UserRecord],
    ) -> Result<(), HandlerError> {
        let batch = Batch { shard: Arc::clone(shard), lease_term, records: records.to_vec() };
        (self.handle)(batch).await.map_err(Into::into)
    }
}

/// Runs one call of the user's code, and turns a panic into an error. The first poll of the call
/// happens in the first poll of this future with nothing in between, so a check made just before it
/// covers the call.
///
/// Create the call inside `call`, in an `async` block, so that a panic while the future is created
/// is also caught.
pub(in crate::consumer) async fn attempt<T>(
    call: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    attempt_or_wait(call, || {}).await
}

/// Runs one call like [`attempt`], and calls `waits` whenever the call is pending.
pub(in crate::consumer) async fn attempt_or_wait<T>(
    call: impl Future<Output = Result<T, HandlerError>>,
    mut waits: impl FnMut(),
) -> Result<T, HandlerError> {
    let mut call = pin!(call);
    poll_fn(|context| {
        // After a panic, only the user's own state can be inconsistent; the future is not polled
        // again.
        let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panic_message(&*panic))));
        if polled.is_pending() {
            waits();
        }
        polled
    })
    .await
}

/// Converts a panic into an error.
fn panic_message(panic: &(dyn Any + Send)) -> HandlerError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.as_deref().unwrap_or("no message")).into()
}
