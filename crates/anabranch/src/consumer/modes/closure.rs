//! The user's code: a closure per record or per batch, and what its call came to.

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

/// What a handler may fail with.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// What a handler fails with that was kept from its work by something else than the records: it is
/// told to end, or whoever takes its results has gone. The records come again after a pause, and
/// it is no attempt of those after which they are parked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Interrupted {
    /// What kept it.
    pub why: String,
}

impl Interrupted {
    /// It was kept from its work by this.
    pub fn because(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

/// Who is given the records. [`Consumer::each`](crate::consumer::Consumer::each) and
/// [`Consumer::batches`](crate::consumer::Consumer::batches) make one of a closure.
pub trait Handler: Send + Sync + 'static {
    /// How many records one call takes at most.
    fn max_records(&self) -> usize;

    /// Handles records of one lane of one shard, in order, under this term of the shard's lease
    /// ([`Delivery::lease_term`]). When it returns `Ok`, they are done and will not come again; on an
    /// error or a panic the same records come again. Its future may be dropped at any await, when
    /// the lease is lost or a stop takes too long.
    fn handle(
        &self,
        shard: &Arc<LeaseKey>,
        lease_term: u64,
        records: &[UserRecord],
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// One record, and the shard that it came from. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// The term of the lease under which it is delivered; `None` without a lease, as from a
    /// [`Tail`](crate::tail::Tail) or a dead letter.
    ///
    /// The term is a fencing token: it grows whenever the shard's lease is taken, passed on or given
    /// back. A store that remembers the highest term of a shard can refuse a late write of an owner
    /// before.
    pub lease_term: Option<u64>,
    /// The record.
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
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// The term of the lease under which they are delivered ([`Delivery::lease_term`]).
    pub lease_term: u64,
    /// The records.
    pub records: Vec<UserRecord>,
}

/// A closure per record.
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

/// A closure per batch.
#[derive(Clone, Copy, Debug)]
pub struct PerBatch<F> {
    /// The closure.
    pub(in crate::consumer) handle: F,
    /// How many records one call takes at most.
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

/// Makes one call of the user's code. Its first poll is this future's first poll, with nothing in
/// between, so that a check just before counts for the call. A panic is an error like any other.
///
/// Make the call inside of `call`, in an `async` block, so that a panic of what makes the future is
/// caught too.
pub(in crate::consumer) async fn attempt<T>(
    call: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    attempt_or_wait(call, || {}).await
}

/// The same, and tells each time that the call has to wait.
pub(in crate::consumer) async fn attempt_or_wait<T>(
    call: impl Future<Output = Result<T, HandlerError>>,
    mut waits: impl FnMut(),
) -> Result<T, HandlerError> {
    let mut call = pin!(call);
    poll_fn(|context| {
        // What a panic leaves half done belongs to the user's own state; the future is not polled
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

/// A panic as an error.
fn panic_message(panic: &(dyn Any + Send)) -> HandlerError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.as_deref().unwrap_or("no text")).into()
}
