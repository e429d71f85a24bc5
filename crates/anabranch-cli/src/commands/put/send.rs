//! Producer of `put` and `cp`, and the counting of outcomes.

use super::PutCounts;
use crate::connection::AwsClients;
use crate::failure::CommandFailure;
use crate::input::InputLine;
use crate::notices;
use anabranch::clock::Clock;
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{
    Aggregation, NewRecord, OrderingKey, Producer, ProducerStartError, PutError, RejectReason,
    Ticket, TryPutError,
};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::record::PartitionKey;
use anabranch_model::sequence::SequenceNumber;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Maximum tickets that wait for their outcome, and so the maximum records in flight. With more,
/// records would be older when they are sent, and a stop would wait longer.
const WAITING: usize = 16_384;
/// Maximum tickets handed over at once.
const HANDFUL: usize = 256;
/// Time for which a stream may refuse a producer before it has accepted any record.
const REFUSED: Duration = Duration::from_secs(3);
/// Time for requests in flight after that.
const LAST_REPLY: Duration = Duration::from_millis(500);
/// Maximum stopped keys here. The producer's own limit is the same.
const STOPPED_MAX: usize = 10_000;

/// Options for sending records.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SendOptions {
    /// Aggregate records in the KPL format: faster, for readers that deaggregate, such as KCL, this
    /// program and its library
    #[arg(long)]
    aggregate: bool,
    /// Time limit for a record, such as 30s; without it, records are retried forever
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Producer name in warnings and in the --json summary, at most 128 characters; without it, a
    /// random name
    #[arg(long, value_name = "NAME", value_parser = producer_name)]
    producer_id: Option<String>,
    /// Add a deduplication tag to each aggregate, so that consumers of this library drop duplicates
    /// after a lost reply: 48 bytes, which other readers skip
    #[arg(long, requires = "aggregate", visible_alias = "marks")]
    dedup_tags: bool,
}

/// Validates a producer name of the command line.
pub(crate) fn producer_name(text: &str) -> Result<String, String> {
    match text.chars().count() {
        1..=128 => Ok(text.to_owned()),
        0 => Err("a producer name can't be empty".to_owned()),
        count => Err(format!("it has {count} characters; the maximum is 128")),
    }
}

/// Puts records and counts their outcomes.
pub(crate) struct PutSink {
    producer: Producer,
    /// Channel of tickets to the counting task.
    tickets: mpsc::Sender<PendingPut>,
    /// Tickets not handed over yet.
    accepted: Vec<PendingPut>,
    /// Keys of records that the producer refused. No later record may pass.
    stopped: BTreeSet<OrderingKey>,
    tally: Arc<PutCounts>,
    /// The counting task.
    counting: JoinSet<()>,
    /// The task that gives up if the stream refuses the first records.
    giving_up: JoinSet<()>,
    /// Cancelled once it has given up.
    given_up: CancellationToken,
}

/// Origin of a record, for messages.
#[derive(Debug)]
pub(crate) enum RecordOrigin {
    /// A line of a file: file name and line number.
    Line(Arc<str>, u64),
    /// A record of a stream.
    Record(ShardId, SequenceNumber),
}

impl From<&InputLine> for RecordOrigin {
    fn from(line: &InputLine) -> Self {
        Self::Line(Arc::clone(&line.source), line.number)
    }
}

impl fmt::Display for RecordOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(source, number) => write!(f, "{source}, line {number}"),
            Self::Record(shard, sequence) => write!(f, "{shard} {sequence}"),
        }
    }
}

/// An accepted record.
struct PendingPut {
    origin: RecordOrigin,
    /// Size of the data.
    bytes: usize,
    ticket: Ticket,
}

impl PutSink {
    /// Checks the stream and starts a producer.
    pub(crate) async fn start(
        aws: &AwsClients,
        stream: &StreamName,
        sending: &SendOptions,
    ) -> Result<Self, CommandFailure> {
        aws.check_if_allowed(stream).await?;
        let aggregation = if sending.aggregate { Aggregation::ByShard } else { Aggregation::Off };
        let access = watch::Sender::new(StreamAccess::Untried);
        let access_now = access.subscribe();
        let mut builder = Producer::new(stream.clone())
            .with_aggregation(aggregation)
            .with_dedup_tags(sending.dedup_tags)
            .with_events(notices::printed(false).and(watched(access)));
        if let Some(id) = &sending.producer_id {
            builder = builder.with_id(id.as_str());
        }
        if let Some(timeout) = sending.timeout {
            builder = builder.with_deadline(timeout);
        }
        let started = builder.with_kinesis(aws.kinesis.clone()).start().await;
        let producer = started.map_err(|error| start_failure(&error))?;
        let (tickets, waiting) = mpsc::channel(WAITING);
        let tally = Arc::new(PutCounts::new(producer.id().clone(), Clock::machine()));
        let mut counting = JoinSet::new();
        counting.spawn(count(waiting, Arc::clone(&tally)));
        let (accepted, stopped) = (Vec::new(), BTreeSet::new());
        let given_up = CancellationToken::new();
        let mut giving_up = JoinSet::new();
        // `--timeout` already bounds the wait.
        if sending.timeout.is_none() {
            giving_up.spawn(give_up(producer.clone(), access_now, given_up.clone()));
        }
        let sink =
            Self { producer, tickets, accepted, stopped, tally, counting, giving_up, given_up };
        Ok(sink)
    }

    /// Puts a record, and waits for free space if necessary. Its outcome is counted only after
    /// [`PutSink::hand_over`], which handles many records at once.
    pub(crate) async fn put(
        &mut self,
        origin: RecordOrigin,
        record: NewRecord,
    ) -> Result<(), CommandFailure> {
        let key = record.key_id();
        if self.stopped.contains(&key) {
            self.tally.refused(&origin, &RejectReason::KeyStopped.to_string());
            return Ok(());
        }
        let bytes = record.data_len();
        let put = match self.producer.try_put_record(record) {
            Ok(ticket) => Ok(ticket),
            Err(TryPutError::Refused(error)) => Err(error),
            Err(TryPutError::Full(record)) => {
                self.hand_over().await;
                self.producer.put_record(record).await
            }
        };
        match put {
            Ok(ticket) => {
                self.accepted.push(PendingPut { origin, bytes, ticket });
                if self.accepted.len() >= HANDFUL {
                    self.hand_over().await;
                }
            }
            Err(PutError::Closed) => return Err(self.gave_up()),
            Err(error) => {
                self.tally.refused(&origin, &error.to_string());
                self.stop(&key)?;
            }
        }
        Ok(())
    }

    /// Hands all accepted records over for counting. Must be called before waiting for further
    /// records.
    pub(crate) async fn hand_over(&mut self) {
        // The counting task outlives this sender. Cancelling the wait loses nothing.
        if let Ok(places) = self.tickets.reserve_many(self.accepted.len()).await {
            places.zip(self.accepted.drain(..)).for_each(|(place, put)| place.send(put));
        }
    }

    /// Waits until the producer is closed because the stream refuses it.
    pub(crate) fn refused(&self) -> impl Future<Output = ()> + use<> {
        self.given_up.clone().cancelled_owned()
    }

    /// Returns the failure for that case.
    pub(crate) fn gave_up(&self) -> CommandFailure {
        let stream = self.producer.stream();
        CommandFailure::result(format!(
            "{stream} refuses this producer, so the rest was not put: check the permissions, the \
             credentials and the stream's encryption key; --timeout waits longer"
        ))
    }

    /// Stops a key, so that no later record passes.
    fn stop(&mut self, key: &OrderingKey) -> Result<(), CommandFailure> {
        if self.stopped.len() == STOPPED_MAX {
            return Err(CommandFailure::result(format!(
                "more than {STOPPED_MAX} keys are stopped: the rest was not put"
            )));
        }
        // The key may be a slice of a large buffer, which must not be kept alive.
        let copy = PartitionKey::from(key.key.as_str());
        self.stopped.insert(OrderingKey { key: copy, explicit: key.explicit });
        Ok(())
    }

    /// Returns the counts so far.
    pub(crate) fn tally(&self) -> &PutCounts {
        &self.tally
    }

    /// Waits until every record has its outcome. A second stop signal ends the wait.
    pub(crate) async fn close(mut self) -> Arc<PutCounts> {
        let patience = async {
            match crate::signals::wait_for_forced_stop() {
                Ok(stop) => stop.await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = patience => {
                // Records that were sent and not answered have an unknown outcome.
                self.stopped.extend(self.producer.stopped_keys().await);
                self.producer.close(Duration::ZERO).await;
            }
            () = async { self.hand_over().await; self.producer.flush().await } => {
                self.stopped.extend(self.producer.stopped_keys().await);
            }
        }
        self.hand_over().await;
        self.giving_up.abort_all();
        drop(self.tickets);
        while self.counting.join_next().await.is_some() {}
        self.tally.finish(self.stopped);
        self.tally
    }
}

/// Observed access to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamAccess {
    /// No answer yet.
    Untried,
    /// It refuses the producer and has accepted no record.
    Refused,
    /// It has accepted records.
    Granted,
}

/// Returns a listener that tracks the access to the stream.
fn watched(access: watch::Sender<StreamAccess>) -> Events {
    Events::new(move |event| {
        let now = match event {
            Event::Producer(ProducerEvent::Paused { .. }) => StreamAccess::Refused,
            Event::Producer(ProducerEvent::Placed { .. } | ProducerEvent::Resumed { .. }) => {
                StreamAccess::Granted
            }
            _ => return,
        };
        access.send_if_modified(|access| {
            let changes = *access != StreamAccess::Granted && *access != now;
            if changes {
                *access = now;
            }
            changes
        });
    })
}

/// Closes the producer if the stream refuses it for [`REFUSED`] and has accepted no record before.
/// Otherwise it keeps waiting, because a permission may be restored.
async fn give_up(
    producer: Producer,
    mut access: watch::Receiver<StreamAccess>,
    given_up: CancellationToken,
) {
    if access.wait_for(|access| *access != StreamAccess::Untried).await.is_err() {
        return;
    }
    let granted = access.wait_for(|access| *access == StreamAccess::Granted);
    if tokio::time::timeout(REFUSED, granted).await.is_err() {
        producer.close(LAST_REPLY).await;
        given_up.cancel();
    }
}

/// Counts outcomes in the order of the puts.
async fn count(mut waiting: mpsc::Receiver<PendingPut>, tally: Arc<PutCounts>) {
    let mut puts = Vec::with_capacity(HANDFUL);
    while waiting.recv_many(&mut puts, HANDFUL).await > 0 {
        for PendingPut { origin, bytes, ticket } in puts.drain(..) {
            tally.count_outcome(&origin, bytes, &ticket.await);
        }
    }
}

fn start_failure(error: &ProducerStartError) -> CommandFailure {
    match error {
        ProducerStartError::IgnoresKeys { stream } => CommandFailure::usage(format!(
            "stream {stream} ignores partition keys (AUTO distribution), so keys can't keep their \
             order: set its distribution to USER_PARTITION_KEY"
        )),
        other => CommandFailure::usage(other),
    }
}
