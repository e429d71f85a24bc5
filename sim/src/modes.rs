//! The processing modes: paths of a consumer's records to the handler of the simulator.
//!
//! In every mode, a record is noted as handed out in the same poll in which the library hands it
//! out, before anything is awaited. It is noted as done when the library learns it.

use crate::effects::Transaction;
use crate::faults::{FaultyStore, FaultyStream};
use crate::flaw::{FlawedHandler, FlawedStore, FlawedStream};
use crate::fleet::{HandledCall, HandlerState};
use crate::history::HistoryEvent;
use crate::latest_tracker::LatestTracker;
use crate::rows::LeaseRows;
use anabranch::consumer::{
    Batch, Checkpointer, Consumer, Delivery, HandlerError, ProcessorBatch, Processors,
    RestartProcessor, RunError, ShardProcessor, ShardRecord, ShardStart, ShardStream,
    TransactionBatch,
};
use anabranch_model::lease::LeaseKey;
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The stream as a fleet reaches it.
pub(crate) type FleetApi = FlawedStream<FaultyStream<LatestTracker>>;
/// The lease rows as a fleet reaches them.
pub(crate) type FleetStore = FlawedStore<FaultyStore<LeaseRows>>;

/// Maximum delay of acks, in milliseconds.
const HELD_BACK_MS: u64 = 200;

/// Maximum number of delayed acks.
const HELD_BACK: usize = 4;

/// One processing mode of a consumer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum SimMode {
    /// A closure for each record.
    #[default]
    Each,
    /// A closure for at most this many records.
    Batches(usize),
    /// A processor for each shard, with at most this many records in a call.
    Processors(usize),
    /// A stream for each shard, with at most this many unacked records.
    Streams(u32),
    /// A closure with a transaction for at most this many records.
    ExactlyOnce(usize),
}

impl SimMode {
    /// Returns true if the records of one shard may go to several lanes.
    pub fn takes_lanes(self) -> bool {
        !matches!(self, Self::Processors(_) | Self::Streams(_))
    }

    /// Returns true if the library checkpoints everything that is done before it releases a lease.
    pub fn checkpoints_by_itself(self) -> bool {
        !matches!(self, Self::Processors(_))
    }
}

/// Runs a consumer in the mode of its fleet until `stop`.
pub(crate) async fn run(
    consumer: Consumer<FleetApi, FleetStore>,
    store: FleetStore,
    desk: &Arc<HandlerState>,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let desk = Arc::clone(desk);
    match desk.fleet.temper.mode {
        SimMode::Each => {
            let handling = Arc::new(FlawedHandler::new(desk.fleet.flaw));
            let each = consumer.each(move |delivery: Delivery| {
                let begin = |desk: &HandlerState, given: &Delivery| {
                    let record = std::slice::from_ref(&given.record);
                    desk.begin(&given.shard, given.lease_term, record)
                };
                let given = handling.given(delivery);
                // Noted in the same poll as the call, before anything is awaited.
                let mut first = given.first().map(|given| begin(&desk, given));
                let (desk, handling) = (Arc::clone(&desk), Arc::clone(&handling));
                async move {
                    for given in given {
                        let calls = first.take().unwrap_or_else(|| begin(&desk, &given))?;
                        let desk = Arc::clone(&desk);
                        handling.handler_result(async move { desk.handle(calls).await }).await?;
                    }
                    Ok::<(), HandlerError>(())
                }
            });
            each.run_until(stop).await
        }
        SimMode::Batches(most) => {
            let handling = Arc::new(FlawedHandler::new(desk.fleet.flaw));
            let batches = consumer.batches(most, move |batch: Batch| {
                let batch = handling.given_batch(batch);
                let calls = desk.begin(&batch.shard, Some(batch.lease_term), &batch.records);
                let (desk, handling) = (Arc::clone(&desk), Arc::clone(&handling));
                async move {
                    let calls = calls?;
                    handling.handler_result(async move { desk.handle(calls).await }).await
                }
            });
            batches.run_until(stop).await
        }
        SimMode::Processors(most) => {
            let made = move |shard: &Arc<LeaseKey>| {
                let (desk, shard) = (Arc::clone(&desk), Arc::clone(shard));
                SimProcessor { desk, shard, term: 0, done: Vec::new() }
            };
            let processors = Processors::new(made).with_most(most).with_empty_calls();
            consumer.with_handler(processors).run_until(stop).await
        }
        SimMode::Streams(unacked) => streams(consumer, desk, unacked, stop).await,
        SimMode::ExactlyOnce(most) => {
            let store = Arc::new(store);
            let once = consumer.exactly_once(most, move |batch: TransactionBatch<FleetStore>| {
                let calls = desk.begin(&batch.shard, Some(batch.lease_term), &batch.records);
                let (desk, store) = (Arc::clone(&desk), Arc::clone(&store));
                async move { transact(&desk, &store, &batch, calls?).await }
            });
            once.run_until(stop).await
        }
    }
}

/// Applies the effects of a batch and its checkpoint in one transaction.
async fn transact(
    desk: &Arc<HandlerState>,
    store: &FleetStore,
    batch: &TransactionBatch<FleetStore>,
    calls: Vec<HandledCall>,
) -> Result<(), HandlerError> {
    let stored = async {
        if !desk.take_time().await {
            return Err("the handler fails, as it was told".into());
        }
        let mut transaction = Transaction::default();
        batch.commit(&mut transaction).await?;
        let (of, effects) = (Arc::clone(desk), calls.clone());
        transaction.commit(store, &desk.fleet.rows, move || of.done(&effects)).await
    };
    let stored: Result<(), HandlerError> = stored.await;
    if stored.is_err() {
        desk.failed(calls);
    }
    stored
}

/// A processor of one shard.
struct SimProcessor {
    desk: Arc<HandlerState>,
    shard: Arc<LeaseKey>,
    /// Term of the lease.
    term: u64,
    /// Records done since the last checkpoint.
    done: Vec<HandledCall>,
}

impl SimProcessor {
    /// Checkpoints the records that are done. Returns true on success.
    async fn checkpoint(&mut self, checkpointer: &Checkpointer) -> bool {
        let Some(last) = self.done.last() else { return true };
        let (at, hold) = (last.grain.at, last.hold.clone());
        let made = if self.desk.chance.below(4) == 0 {
            match checkpointer.prepare(Some(at), Bytes::from_static(b"state")).await {
                Ok(prepared) => prepared.checkpoint().await,
                Err(error) => Err(error),
            }
        } else {
            checkpointer.checkpoint_at(at).await
        };
        if made.is_ok() {
            self.desk.note(HistoryEvent::Checkpointed { hold, at });
            self.done.clear();
        }
        made.is_ok()
    }
}

impl ShardProcessor for SimProcessor {
    async fn initialize(&mut self, start: ShardStart) -> Result<(), HandlerError> {
        self.term = start.lease_term;
        if self.desk.has_faults() && self.desk.chance.below(20) == 0 {
            return Err("the processor can't begin, as it was told".into());
        }
        Ok(())
    }

    async fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        if !batch.records.is_empty() {
            let calls = self.desk.begin(&self.shard, Some(self.term), &batch.records)?;
            self.desk.handle(calls.clone()).await?;
            self.done.extend(calls);
        }
        let foul = self.desk.has_faults();
        if foul && self.desk.chance.below(60) == 0 {
            // The records done since the last checkpoint are delivered again.
            self.desk.failed(std::mem::take(&mut self.done));
            self.desk.note(HistoryEvent::StartedOver((*self.shard).clone()));
            return Err(RestartProcessor::because("it was told to").into());
        }
        if self.desk.chance.below(3) == 0 {
            self.checkpoint(checkpointer).await;
        }
        if !foul && batch.records.is_empty() {
            // All records that were handed out are done, and so are dead letters, for which no call
            // was made.
            let _ = checkpointer.checkpoint().await;
        }
        Ok(())
    }

    async fn lease_lost(&mut self) {
        self.desk.take_time().await;
    }

    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), HandlerError> {
        if self.desk.has_faults() && self.desk.chance.below(5) == 0 {
            return Ok(());
        }
        Ok(checkpointer.checkpoint().await?)
    }

    async fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        self.checkpoint(checkpointer).await;
        Ok(())
    }
}

/// Reads every shard that the worker offers.
async fn streams(
    consumer: Consumer<FleetApi, FleetStore>,
    desk: Arc<HandlerState>,
    unacked: u32,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let mut shards = consumer.shard_streams(unacked);
    let mut readers = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            shard = shards.next() => match shard {
                Some(shard) => {
                    readers.spawn(read(Arc::clone(&desk), shard));
                }
                None => break,
            },
            Some(read) = readers.join_next() => read.expect("no reader panics"),
        }
    }
    shards.stop().await
}

/// Handles the records of one shard sequentially, and acks them late and in any order.
async fn read(desk: Arc<HandlerState>, mut stream: ShardStream) {
    let (shard, term) = (Arc::clone(stream.shard()), stream.lease_term());
    let mut held: Vec<(ShardRecord, Vec<HandledCall>)> = Vec::new();
    loop {
        let waited = Duration::from_millis(1 + desk.chance.below(HELD_BACK_MS));
        let next = tokio::select! {
            biased;
            next = stream.next() => next,
            () = tokio::time::sleep(waited), if !held.is_empty() => {
                ack(&desk, &mut held);
                continue;
            }
        };
        let Some(record) = next else { break };
        // Nothing is awaited between taking a record and this.
        let same_key = |(other, _): &(ShardRecord, _)| other.partition_key == record.partition_key;
        if held.len() >= HELD_BACK || held.iter().any(same_key) {
            ack(&desk, &mut held);
        }
        let Ok(calls) = desk.begin(&shard, Some(term), std::slice::from_ref(&*record)) else {
            break;
        };
        if !desk.take_time().await && desk.chance.below(10) == 0 {
            // The stream is dropped with its unacked records.
            desk.failed(calls);
            held.drain(..).for_each(|(_, calls)| desk.failed(calls));
            return;
        }
        held.push((record, calls));
        if !desk.has_faults() {
            ack(&desk, &mut held);
        }
    }
    ack(&desk, &mut held);
}

/// Acks all held records, in random order.
fn ack(desk: &Arc<HandlerState>, held: &mut Vec<(ShardRecord, Vec<HandledCall>)>) {
    while !held.is_empty() {
        let at = usize::try_from(desk.chance.below(held.len() as u64)).unwrap_or(0);
        let (record, calls) = held.swap_remove(at);
        desk.done(&calls);
        record.ack();
    }
}
