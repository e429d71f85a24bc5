//! The producer behind `put` and `cp`, and what became of each record.

use super::{PutCounts, counts};
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

/// Tickets that may wait for their outcome to be counted. So many records are under way at the most:
/// more would be older by the time they leave, and a stop would have to wait for them.
const WAITING: usize = 16_384;
/// Tickets that are handed over at once, at the most.
const HANDFUL: usize = 256;
/// How long a stream may refuse a producer of which it has not taken a record yet.
const REFUSED: Duration = Duration::from_secs(3);
/// How long a request that is on its way may still take then.
const LAST_REPLY: Duration = Duration::from_millis(500);
/// Keys that may stand stopped here; the producer allows as many itself.
const STOPPED_MAX: usize = 10_000;

/// How records are sent.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SendOptions {
    /// Send many records as one KPL aggregate: faster, for readers that take them apart, as KCL,
    /// this program and its library do
    #[arg(long)]
    aggregate: bool,
    /// Give a record up after so long, such as 30s; without it, it is tried for ever
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Name this producer in warnings and in the summary of --json, in at most 128 characters;
    /// without it, a name is drawn at random
    #[arg(long, value_name = "NAME", value_parser = producer_name)]
    producer_id: Option<String>,
    /// Mark each aggregate, so that consumers of this library drop the second copy that a lost
    /// reply may leave: 48 bytes, which other readers skip
    #[arg(long, requires = "aggregate")]
    marks: bool,
}

/// The name of a producer, as an option has it.
pub(crate) fn producer_name(text: &str) -> Result<String, String> {
    match text.chars().count() {
        1..=128 => Ok(text.to_owned()),
        0 => Err("a producer's name is not empty".to_owned()),
        count => Err(format!("it has {count} characters, and 128 is the most")),
    }
}

/// Where records go, and the count of what became of them.
pub(crate) struct PutSink {
    producer: Producer,
    /// Tickets on their way to the count.
    tickets: mpsc::Sender<PendingPut>,
    /// Those that are not on their way yet.
    accepted: Vec<PendingPut>,
    /// Keys with a record that the producer did not take: nothing may pass it.
    stopped: BTreeSet<OrderingKey>,
    /// What is counted so far.
    tally: Arc<PutCounts>,
    /// The task that counts.
    counting: JoinSet<()>,
    /// The task that gives up where the stream refuses the very first records.
    giving_up: JoinSet<()>,
    /// Cancelled when it did.
    given_up: CancellationToken,
}

/// Where a record came from, for messages.
#[derive(Debug)]
pub(crate) enum RecordOrigin {
    /// A line of a file, by the file's name and the line's number.
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

/// A record that was accepted.
struct PendingPut {
    origin: RecordOrigin,
    /// Its bytes.
    bytes: usize,
    ticket: Ticket,
}

impl PutSink {
    /// Starts a producer for the stream, after a look at it.
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
            .with_dedup_tags(sending.marks)
            .with_events(notices::printed(false).and(watched(access)));
        if let Some(id) = &sending.producer_id {
            builder = builder.with_id(id.as_str());
        }
        if let Some(timeout) = sending.timeout {
            builder = builder.with_deadline(timeout);
        }
        let started = builder.start(aws.kinesis.clone()).await;
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

    /// Puts a record, and waits for room if there is none. Its outcome is counted once it was handed
    /// over, which is done for many at once: see [`PutSink::hand_over`].
    pub(crate) async fn put(
        &mut self,
        origin: RecordOrigin,
        record: NewRecord,
    ) -> Result<(), CommandFailure> {
        let key = record.key_id();
        if self.stopped.contains(&key) {
            self.tally.refused(&origin, &counts::reason(&RejectReason::KeyStopped));
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

    /// Has the outcomes of all records so far counted. To be called before whatever may wait for
    /// more of them.
    pub(crate) async fn hand_over(&mut self) {
        // The counting task ends only after this sender. A wait that is broken off loses nothing.
        if let Ok(places) = self.tickets.reserve_many(self.accepted.len()).await {
            places.zip(self.accepted.drain(..)).for_each(|(place, put)| place.send(put));
        }
    }

    /// Waits until no record is put any more because the stream refuses the producer.
    pub(crate) fn refused(&self) -> impl Future<Output = ()> + use<> {
        self.given_up.clone().cancelled_owned()
    }

    /// Why no record is put any more.
    pub(crate) fn gave_up(&self) -> CommandFailure {
        let stream = self.producer.stream();
        CommandFailure::result(format!(
            "{stream} refuses this producer, so the rest was not put: check the permissions, the \
             credentials and the stream's encryption key; --timeout waits for longer"
        ))
    }

    /// Lets no later record of the key pass.
    fn stop(&mut self, key: &OrderingKey) -> Result<(), CommandFailure> {
        if self.stopped.len() == STOPPED_MAX {
            return Err(CommandFailure::result(format!(
                "more than {STOPPED_MAX} keys stand stopped: the rest was not put"
            )));
        }
        // The key may be a slice of something large, which is not to be kept.
        let copy = PartitionKey::from(key.key.as_str());
        self.stopped.insert(OrderingKey { key: copy, explicit: key.explicit });
        Ok(())
    }

    /// What is counted so far.
    pub(crate) fn tally(&self) -> &PutCounts {
        &self.tally
    }

    /// Waits until every record has its outcome. Whoever insists on a stop ends the wait.
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
                // What was sent and not answered has no certain place.
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

/// The state of knowledge about whether the stream takes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamAccess {
    /// It was not asked yet.
    Untried,
    /// It has taken none, and refuses the producer.
    Refused,
    /// It has taken records.
    Granted,
}

/// Keeps what events tell of the stream's access.
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

/// Closes the producer once the stream has refused it for a while and taken no record before. One
/// that has taken records is waited for: it may be a permission that comes back.
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
            "the stream {stream} spreads records whatever their keys (AUTO distribution), so keys \
             can't keep their order: set it to USER_PARTITION_KEY"
        )),
        other => CommandFailure::usage(other),
    }
}
