//! A shard as a stream of records.

use super::record::{AckHandle, AckTracker, ShardRecord, StreamItem};
use crate::lease::{LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::LeaseKey;
use futures_core::Stream;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

type DeliveryCheck = Pin<Box<dyn Future<Output = bool> + Send>>;

/// The right to deliver records, independent of the lease store.
pub(in crate::consumer) trait DeliveryRight: Send + Sync {
    /// Returns true if a record may be delivered in this very poll.
    fn may_deliver(&self) -> bool;

    /// Waits while the validity of the lease is in doubt. A result of `false` is final.
    fn until_may_deliver(self: Arc<Self>) -> DeliveryCheck;
}

impl<S: LeaseStore, A: StreamApi> DeliveryRight for LeaseHandle<S, A> {
    fn may_deliver(&self) -> bool {
        Self::may_deliver(self)
    }

    fn until_may_deliver(self: Arc<Self>) -> DeliveryCheck {
        Box::pin(async move { Self::wait_until_may_deliver(&self).await })
    }
}

/// The records of one shard, in order. The stream ends when the closed shard ends, when the lease
/// is lost, or when the worker stops. If it is dropped before, the shard is released, and offered
/// again after a pause.
#[must_use = "dropping it releases the shard"]
pub struct ShardStream {
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    pub(in crate::consumer) lease_term: u64,
    /// Records that wait to be taken.
    pub(in crate::consumer) items: mpsc::Receiver<StreamItem>,
    pub(in crate::consumer) acks: Arc<AckTracker>,
    /// Right to deliver, while the shard is read. It is weak, so that a stream that is kept does
    /// not keep the lease.
    pub(in crate::consumer) tenant: Weak<dyn DeliveryRight>,
    /// Cancelled when no more records may be taken.
    pub(in crate::consumer) closed: CancellationToken,
    /// A record that waits until it is certain that it may be delivered.
    pub(in crate::consumer) doubtful: Option<(StreamItem, DeliveryCheck)>,
    /// Cancelled when the stream is dropped.
    pub(in crate::consumer) dropped: CancellationToken,
    /// Cancelled when some record can no longer be acked.
    pub(in crate::consumer) hopeless: CancellationToken,
    /// Guard that signals, when dropped with the stream and all taken records, that no more acks
    /// can arrive.
    pub(in crate::consumer) hope: Arc<AckHandle>,
}

impl ShardStream {
    /// Returns the stream and shard that the records come from.
    pub fn shard(&self) -> &Arc<LeaseKey> {
        &self.shard
    }

    /// Returns the term of the lease under which the shard is read
    /// ([`Delivery::lease_term`](crate::consumer::Delivery::lease_term)).
    pub fn lease_term(&self) -> u64 {
        self.lease_term
    }

    /// Waits for the next record. Returns `None` at the end.
    pub async fn next(&mut self) -> Option<ShardRecord> {
        poll_fn(|context| self.poll_record(context)).await
    }

    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<Option<ShardRecord>> {
        loop {
            if self.closed.is_cancelled() {
                return Poll::Ready(None);
            }
            let item = match self.doubtful.take() {
                Some((item, mut may)) => match may.as_mut().poll(context) {
                    Poll::Pending => {
                        self.doubtful = Some((item, may));
                        return Poll::Pending;
                    }
                    Poll::Ready(false) => return Poll::Ready(None),
                    Poll::Ready(true) => item,
                },
                None => match ready!(self.items.poll_recv(context)) {
                    Some(item) => item,
                    None => return Poll::Ready(None),
                },
            };
            let Some(tenant) = self.tenant.upgrade() else { return Poll::Ready(None) };
            // This check and handing out the record happen in one poll.
            if !tenant.may_deliver() {
                self.doubtful = Some((item, tenant.until_may_deliver()));
                continue;
            }
            if let Some(record) = self.acks.take(item, &self.hope) {
                return Poll::Ready(Some(record));
            }
        }
    }
}

impl Drop for ShardStream {
    fn drop(&mut self) {
        // Records that were sent and not taken are lost with the stream.
        if self.doubtful.is_some() || !self.items.is_empty() {
            self.hopeless.cancel();
        }
        self.dropped.cancel();
    }
}

/// Yields the records.
impl Stream for ShardStream {
    type Item = ShardRecord;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ShardRecord>> {
        self.get_mut().poll_record(context)
    }
}

impl fmt::Debug for ShardStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardStream({})", self.shard)
    }
}
