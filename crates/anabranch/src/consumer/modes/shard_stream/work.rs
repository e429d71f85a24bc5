//! A shard's reading, as its stream wants it.

use super::ShardStreamMode;
use super::record::{AckHandle, AckTracker, StreamItem};
use super::stream::{DeliveryRight, ShardStream};
use crate::consumer::checkpoint::in_lanes_of;
use crate::consumer::modes::closure::HandlerError;
use crate::consumer::modes::{HandlerCall, NotAccepted, ProcessingMode, Work};
use crate::consumer::progress::Progress;
use crate::lease::{LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, Layout};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How many records go to a stream in one call.
const MOST: usize = 64;

/// A shard's reading, as its stream wants it.
pub(in crate::consumer) struct ShardStreamWork {
    /// The stream, until it is offered.
    stream: Mutex<Option<ShardStream>>,
    /// Where it is offered.
    offer: mpsc::Sender<ShardStream>,
    /// Where its records go, until no more are to be taken.
    items: Mutex<Option<mpsc::Sender<StreamItem>>>,
    /// What was taken and what is acked.
    acks: Arc<AckTracker>,
    /// Tells that no more is to be taken.
    closed: CancellationToken,
    /// Tells that the stream was dropped.
    dropped: CancellationToken,
    /// Tells that some record can't be acked any more.
    hopeless: CancellationToken,
    /// Tells that no record can be acked any more.
    forsaken: CancellationToken,
    /// What the row held when the lease was taken.
    taken: Checkpoint,
}

impl fmt::Debug for ShardStreamWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Streaming({:?})", self.acks)
    }
}

impl<S: LeaseStore> ProcessingMode<S> for ShardStreamMode {
    type ShardWork = ShardStreamWork;

    fn max_records(&self) -> usize {
        MOST
    }

    fn supports_lanes(&self) -> bool {
        false
    }

    fn work<A: StreamApi>(self: &Arc<Self>, grip: &Arc<LeaseHandle<S, A>>) -> ShardStreamWork {
        let (sender, items) = mpsc::channel(MOST);
        let acks = Arc::new(AckTracker::new(grip.lease().checkpoint.lowest(), self.unacked));
        let tenant: Arc<dyn DeliveryRight> = Arc::clone(grip) as _;
        let closed = CancellationToken::new();
        let (dropped, hopeless) = (CancellationToken::new(), CancellationToken::new());
        let forsaken = CancellationToken::new();
        let hope = AckHandle {
            _hopeless: hopeless.clone().drop_guard(),
            _forsaken: forsaken.clone().drop_guard(),
        };
        let stream = ShardStream {
            shard: Arc::new(grip.key().clone()),
            lease_term: grip.lease().term,
            items,
            acks: Arc::clone(&acks),
            tenant: Arc::downgrade(&tenant),
            closed: closed.clone(),
            doubtful: None,
            dropped: dropped.clone(),
            hope: Arc::new(hope),
            hopeless: hopeless.clone(),
        };
        ShardStreamWork {
            stream: Mutex::new(Some(stream)),
            offer: self.offer.clone(),
            items: Mutex::new(Some(sender)),
            acks,
            closed,
            dropped,
            hopeless,
            forsaken,
            taken: grip.lease().checkpoint.clone(),
        }
    }
}

impl ShardStreamWork {
    /// Lets no more be taken.
    fn close(&self) {
        self.acks.close();
        self.closed.cancel();
        *lock(&self.items) = None;
    }

    fn sender(&self) -> Option<mpsc::Sender<StreamItem>> {
        lock(&self.items).clone()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A value that is taken or not: a panic leaves no half of one.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work for ShardStreamWork {
    async fn begin(&self) -> Result<(), HandlerError> {
        let stream = lock(&self.stream).take().ok_or("the shard was offered before")?;
        self.offer.send(stream).await.map_err(|_| "nobody takes the shard".into())
    }

    async fn handle(&self, call: HandlerCall<'_>) -> Result<(), HandlerError> {
        // Whoever stops taking says nothing of the records, so none of them has failed.
        let items = self.sender().ok_or(NotAccepted)?;
        for record in call.records {
            let permit = tokio::select! {
                biased;
                () = self.closed.cancelled() => return Err(NotAccepted.into()),
                permit = self.acks.places.acquire() => permit?,
            };
            let item = StreamItem { record: record.clone(), room: call.reservation.cloned() };
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return Err(NotAccepted.into()),
                sent = items.send(item) => sent.map_err(|_| NotAccepted)?,
            }
            // It comes back with the ack. Nothing waits between the sending and this.
            permit.forget();
        }
        Ok(())
    }

    fn checkpoint_for(&self, progress: &Progress, layout: Layout) -> Option<Checkpoint> {
        // What was read and never went to the stream is done with what went before it. The order of
        // these looks matters: what counts here had its place before the places are counted.
        let read = progress.checkpoint(layout).lowest();
        let at = if progress.open() == 0 && self.acks.is_idle() {
            read
        } else {
            self.acks.watermark()?
        };
        Some(in_lanes_of(&self.taken, at))
    }

    async fn ended(&self) -> Result<(), HandlerError> {
        // The stream ends behind its last record.
        *lock(&self.items) = None;
        let stopped = async {
            self.closed.cancelled().await;
            self.wait_settled().await;
        };
        tokio::select! {
            biased;
            () = self.acks.wait_idle() => Ok(()),
            // What was not taken before a stop is never acked, and is not waited for.
            () = stopped => Err(NotAccepted.into()),
        }
    }

    fn begin_stop(&self) {
        self.close();
    }

    async fn stopping(&self) -> Result<(), HandlerError> {
        // What was dropped unacked is not waited for.
        self.wait_settled().await;
        Ok(())
    }

    async fn wait_settled(&self) {
        tokio::select! {
            biased;
            () = self.acks.wait_drained() => {}
            () = self.forsaken.cancelled() => {}
        }
    }

    async fn closed(&self) {
        self.close();
    }

    async fn wait_gave_up(&self) {
        if self.closed.is_cancelled() {
            // A stop has ended the stream, and was taken back: nobody takes from it any more.
            return;
        }
        if self.sender().is_none() {
            // The stream of a closed shard may go before the last acks come.
            self.hopeless.cancelled().await;
        } else {
            self.dropped.cancelled().await;
        }
    }
}
