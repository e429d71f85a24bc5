//! The work on a shard in stream mode.

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

/// Maximum number of records per call, and capacity of the channel to the stream.
const MOST: usize = 64;

/// The work on a shard in stream mode: sends its records to a [`ShardStream`].
pub(in crate::consumer) struct ShardStreamWork {
    /// The stream, until it is offered.
    stream: Mutex<Option<ShardStream>>,
    offer: mpsc::Sender<ShardStream>,
    /// Channel to the stream; `None` once no more records are sent.
    items: Mutex<Option<mpsc::Sender<StreamItem>>>,
    acks: Arc<AckTracker>,
    /// Cancelled when no more records may be taken.
    closed: CancellationToken,
    /// Cancelled when the stream is dropped.
    dropped: CancellationToken,
    /// Cancelled when some record can no longer be acked.
    hopeless: CancellationToken,
    /// Cancelled when no record can be acked any more.
    forsaken: CancellationToken,
    /// Checkpoint of the row when the lease was taken.
    taken: Checkpoint,
}

impl fmt::Debug for ShardStreamWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardStreamWork({:?})", self.acks)
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
    /// Prevents further records from being sent or taken.
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
    // Each change replaces the whole value, so a panic leaves no inconsistent state.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work for ShardStreamWork {
    async fn begin(&self) -> Result<(), HandlerError> {
        let stream = lock(&self.stream).take().ok_or("the shard stream was already handed out")?;
        self.offer
            .send(stream)
            .await
            .map_err(|_| "the receiver of shard streams was dropped".into())
    }

    async fn handle(&self, call: HandlerCall<'_>) -> Result<(), HandlerError> {
        // A stream that accepts no more records says nothing about them, so none of them has
        // failed.
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
            // The permit returns with the ack. There is no await between the send and this line.
            permit.forget();
        }
        Ok(())
    }

    fn checkpoint_for(&self, progress: &Progress, layout: Layout) -> Option<Checkpoint> {
        // Records that were read and never sent to the stream are done once everything before them
        // is. The order of these checks matters: a record that `progress` counts as done has
        // acquired its permit before the permits are counted.
        let read = progress.checkpoint(layout).lowest();
        let at = if progress.open() == 0 && self.acks.is_idle() {
            read
        } else {
            self.acks.watermark()?
        };
        Some(in_lanes_of(&self.taken, at))
    }

    async fn ended(&self) -> Result<(), HandlerError> {
        // The stream ends after its last record.
        *lock(&self.items) = None;
        let stopped = async {
            self.closed.cancelled().await;
            self.wait_settled().await;
        };
        tokio::select! {
            biased;
            () = self.acks.wait_idle() => Ok(()),
            // Records that were not taken before a stop are never acked, so they are not waited
            // for.
            () = stopped => Err(NotAccepted.into()),
        }
    }

    fn begin_stop(&self) {
        self.close();
    }

    async fn stopping(&self) -> Result<(), HandlerError> {
        // Records that were dropped unacked are not waited for.
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
            // A stop has ended the stream and was then withdrawn: no more records can be taken from
            // it.
            return;
        }
        if self.sender().is_none() {
            // The stream of a closed shard may be dropped before the last acks arrive.
            self.hopeless.cancelled().await;
        } else {
            self.dropped.cancelled().await;
        }
    }
}
