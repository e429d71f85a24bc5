//! [`StreamApi`] on the in-process local stream: calls the engine directly, without HTTP or copies.

use super::api::{
    ChildShard, FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom,
    ShardFilter, ShardIterator, ShardList, StreamApi, StreamError, StreamStatus, StreamSummary,
    Subscription, SubscriptionEvent,
};
use super::consumer_limit;
use super::event_stream;
use super::event_stream::EventSource;
use anabranch_local::op::{
    self, ConsumerDescription, ConsumerTarget, HashKeyRange, Operation, ShardDescription,
    StreamTarget, Timestamp, put_records::Payload,
};
use anabranch_local::{ApiError, Engine, ErrorKind, Status, StreamRef};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName, is_arn};
use anabranch_model::limits;
use anabranch_model::lineage::Shard;
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use std::borrow::Cow;
use std::sync::Arc;

/// The in-process local stream. Clones share one engine.
///
/// Fault rules set on the engine apply here too: a delay waits on the engine's clock, and a lost
/// reply is [`Fault::ReplyLost`].
#[derive(Clone, Debug)]
pub struct LocalKinesis {
    engine: Arc<Engine>,
}

impl LocalKinesis {
    /// Returns a client of the streams of `engine`.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Makes one call: waits for the delay of the fault rules, runs `operation`, and waits until
    /// its effect is durable.
    async fn call<T>(
        &self,
        call: LocalCall<'_>,
        delay_ms: u64,
        operation: impl FnOnce(&Engine) -> Result<T, ApiError>,
    ) -> Result<T, StreamError> {
        if delay_ms > 0 {
            let clock = self.engine.clock();
            clock.sleep_until(clock.now_ms().saturating_add(delay_ms)).await;
        }
        let reply = operation(&self.engine).map_err(|error| call.failed(&error))?;
        self.engine.durable().await.map_err(|error| call.failed(&error))?;
        Ok(reply)
    }

    /// Makes a call to a stream, or to one of its shards.
    async fn call_stream<T>(
        &self,
        operation: Operation,
        stream: &str,
        shard: Option<&ShardId>,
        body: impl FnOnce(&Engine) -> Result<T, ApiError>,
    ) -> Result<T, StreamError> {
        let named = named(stream);
        let delay_ms = self.engine.delay_ms(operation, &named, shard.map(ShardId::as_str), None);
        self.call(LocalCall { operation, stream, shard }, delay_ms, body).await
    }

    /// Returns `error` with the fault of the limit that refused the registration.
    fn by_which_limit(&self, stream: &StreamSummary, error: StreamError) -> StreamError {
        let request = op::list_stream_consumers::Request {
            stream: StreamTarget::by_arn(&stream.arn),
            ..op::list_stream_consumers::Request::default()
        };
        let Ok(reply) = self.engine.list_stream_consumers(&request) else { return error };
        let consumers = reply.consumers;
        let creating =
            consumers.iter().filter(|consumer| consumer.consumer_status == Status::Creating);
        let fault = consumer_limit::fault(consumers.len(), creating.count());
        StreamError { fault, ..error }
    }
}

/// Returns how a request names the stream: by ARN if the user gave one, otherwise by name.
fn target(stream: &StreamName) -> StreamTarget {
    let text = stream.as_str();
    if stream.is_arn() { StreamTarget::by_arn(text) } else { StreamTarget::named(text) }
}

/// Returns the same as [`target`], borrowed.
fn named(stream: &str) -> StreamRef<'_> {
    if is_arn(stream) {
        StreamRef { name: None, arn: Some(Cow::Borrowed(stream)) }
    } else {
        StreamRef::named(stream)
    }
}

/// Identifies a call in error messages.
#[derive(Clone, Copy)]
struct LocalCall<'a> {
    operation: Operation,
    stream: &'a str,
    shard: Option<&'a ShardId>,
}

impl LocalCall<'_> {
    fn failed(self, error: &ApiError) -> StreamError {
        let fault = match error.kind {
            ErrorKind::ReplyLost => Fault::ReplyLost,
            kind => Fault::of(kind.name(), Some(kind.http_status())),
        };
        let target = match self.shard {
            None => self.stream.to_owned(),
            Some(shard) => format!("{}/{shard}", self.stream),
        };
        let operation = self.operation.name();
        StreamError { fault, operation, target, detail: error.to_string(), source: None }
    }

    /// Returns the error for a reply that the engine never gives.
    fn unreadable(self, what: &str) -> StreamError {
        self.failed(&ApiError::new(ErrorKind::InternalFailure, format!("unreadable {what}")))
    }
}

impl StreamApi for LocalKinesis {
    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let request = op::describe_stream_summary::Request { stream: target(stream) };
        let operation = Operation::DescribeStreamSummary;
        let reply = self
            .call_stream(operation, stream.as_str(), None, |engine| {
                engine.describe_stream_summary(&request)
            })
            .await?;
        let summary = reply.stream_description_summary;
        Ok(StreamSummary {
            arn: summary.stream_arn,
            status: match summary.stream_status {
                Status::Creating => StreamStatus::Creating,
                Status::Active => StreamStatus::Active,
                Status::Updating => StreamStatus::Updating,
                Status::Deleting => StreamStatus::Deleting,
            },
            created_ms: summary.stream_creation_timestamp.0,
            retention_ms: u64::from(summary.retention_period_hours) * 3_600_000,
            max_record_bytes: summary.max_record_size_in_kib as usize * 1024,
            on_demand: summary.stream_mode_details.stream_mode == "ON_DEMAND",
            ignores_keys: false,
            open_shards: summary.open_shard_count,
        })
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        let operation = Operation::ListShards;
        let call = LocalCall { operation, stream: stream.as_str(), shard: None };
        let service_ms = Some(self.engine.clock().now_ms());
        let mut shards = Vec::new();
        let mut request = op::list_shards::Request {
            stream: target(stream),
            shard_filter: listed(filter),
            max_results: i64::try_from(limits::LIST_SHARDS_MAX_RESULTS).ok(),
            ..op::list_shards::Request::default()
        };
        loop {
            let reply = self
                .call_stream(operation, stream.as_str(), None, |engine| {
                    engine.list_shards(&request)
                })
                .await?;
            for shard in &reply.shards {
                shards.push(lineage(shard).ok_or_else(|| call.unreadable("shard"))?);
            }
            let Some(token) = reply.next_token else { return Ok(ShardList { shards, service_ms }) };
            request = op::list_shards::Request {
                next_token: Some(token),
                max_results: request.max_results,
                ..op::list_shards::Request::default()
            };
        }
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        let (kind, number, timestamp) = place(at);
        let request = op::get_shard_iterator::Request {
            stream: target(stream),
            shard_id: Some(shard.to_string()),
            shard_iterator_type: Some(kind.to_owned()),
            starting_sequence_number: number,
            timestamp,
        };
        let operation = Operation::GetShardIterator;
        let reply = self
            .call_stream(operation, stream.as_str(), Some(shard), |engine| {
                engine.get_shard_iterator(&request)
            })
            .await?;
        Ok(ShardIterator(reply.shard_iterator.into()))
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        let operation = Operation::GetRecords;
        let call = LocalCall { operation, stream: stream.as_str(), shard: None };
        let request = op::get_records::Request {
            shard_iterator: Some(Cow::Borrowed(&iterator.0)),
            limit: Some(i64::from(limit)),
            stream_arn: None,
        };
        let named = named(stream.as_str());
        let delay_ms = self.engine.delay_ms(operation, &named, None, Some(&iterator.0));
        let reply = self.call(call, delay_ms, |engine| engine.get_records(&request)).await?;
        Ok(FetchedRecords {
            records: reply.records.into_records(),
            next: reply.next_iterator.map(|text| ShardIterator(text.into())),
            behind_ms: reply.millis_behind_latest,
            children: children(&reply.child_shards).ok_or_else(|| call.unreadable("children"))?,
        })
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        let request = op::register_stream_consumer::Request {
            stream: StreamTarget::by_arn(&stream.arn),
            consumer_name: Some(name.to_owned()),
            tags: None,
        };
        let operation = Operation::RegisterStreamConsumer;
        let reply = self
            .call_stream(operation, name_in(&stream.arn), None, |engine| {
                engine.register_stream_consumer(&request)
            })
            .await;
        match reply {
            Ok(reply) => Ok(consumer(reply.consumer)),
            Err(error) if error.detail.starts_with(ErrorKind::LimitExceeded.name()) => {
                Err(self.by_which_limit(stream, error))
            }
            Err(error) => Err(error),
        }
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        let request = op::describe_stream_consumer::Request {
            consumer: if is_arn(name) {
                ConsumerTarget { consumer_arn: Some(name.to_owned()), ..ConsumerTarget::default() }
            } else {
                ConsumerTarget {
                    stream_arn: Some(stream.arn.clone()),
                    consumer_name: Some(name.to_owned()),
                    consumer_arn: None,
                }
            },
        };
        let operation = Operation::DescribeStreamConsumer;
        let reply = self
            .call_stream(operation, name_in(&stream.arn), None, |engine| {
                engine.describe_stream_consumer(&request)
            })
            .await?;
        Ok(consumer(reply.consumer_description))
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        let request = op::deregister_stream_consumer::Request {
            consumer: ConsumerTarget {
                consumer_arn: Some(consumer.arn.clone()),
                ..ConsumerTarget::default()
            },
        };
        let operation = Operation::DeregisterStreamConsumer;
        self.call_stream(operation, name_in(&consumer.arn), None, |engine| {
            engine.deregister_stream_consumer(&request)
        })
        .await
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        let (kind, sequence_number, timestamp) = place(at);
        let request = op::subscribe_to_shard::Request {
            consumer_arn: Some(consumer.arn.clone()),
            shard_id: Some(shard.to_string()),
            starting_position: Some(op::subscribe_to_shard::StartingPosition {
                position_type: Some(kind.to_owned()),
                sequence_number,
                timestamp,
            }),
        };
        let operation = Operation::SubscribeToShard;
        let stream = name_in(&consumer.arn);
        let events = self
            .call_stream(operation, stream, Some(shard), |engine| {
                engine.subscribe_to_shard(&request)
            })
            .await?;
        let engine = Arc::clone(&self.engine);
        let (stream, shard) = (stream.to_owned(), shard.clone());
        Ok(event_stream::of_source(LocalSubscription { engine, events, stream, shard }))
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        let operation = Operation::PutRecords;
        let request = op::put_records::Request {
            stream: named(stream.as_str()),
            records: entries.iter().map(put_entry).collect(),
        };
        let call = LocalCall { operation, stream: stream.as_str(), shard: None };
        let delay_ms = self.engine.put_delay_ms(operation, &request.stream, &request.records);
        let reply = self.call(call, delay_ms, |engine| engine.put_records(&request)).await?;
        Ok(reply.entries.into_iter().map(entry_result).collect())
    }

    async fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> Result<Placement, StreamError> {
        let operation = Operation::PutRecord;
        let request = op::put_record::Request {
            stream: named(stream.as_str()),
            entry: put_entry(entry),
            sequence_number_for_ordering: after.map(|number| Cow::Owned(number.to_string())),
        };
        let call = LocalCall { operation, stream: stream.as_str(), shard: None };
        let entries = std::slice::from_ref(&request.entry);
        let delay_ms = self.engine.put_delay_ms(operation, &request.stream, entries);
        let reply = self.call(call, delay_ms, |engine| engine.put_record(&request)).await?;
        Ok(Placement { shard: ShardId::from_index(reply.shard), sequence: reply.sequence })
    }
}

/// A live subscription of the engine.
struct LocalSubscription {
    /// Reports when records are durable.
    engine: Arc<Engine>,
    /// The engine's events.
    events: anabranch_local::subscription::Subscription,
    /// Stream name, for error messages.
    stream: String,
    /// Shard, for error messages.
    shard: ShardId,
}

impl EventSource for LocalSubscription {
    async fn next(&mut self) -> Option<Result<SubscriptionEvent, StreamError>> {
        let event = self.events.next().await?;
        let durable = self.engine.durable().await;
        let operation = Operation::SubscribeToShard;
        let call = LocalCall { operation, stream: &self.stream, shard: Some(&self.shard) };
        let event = match durable.and(event) {
            Ok(event) => event,
            Err(error) => return Some(Err(call.failed(&error))),
        };
        let Some(children) = children(&event.child_shards) else {
            return Some(Err(call.unreadable("children")));
        };
        Some(Ok(SubscriptionEvent {
            records: event.records.into_records(),
            continuation: event.continuation,
            behind_ms: event.millis_behind_latest,
            children,
        }))
    }
}

/// Returns the stream name in the ARN of a stream or of one of its consumers.
fn name_in(arn: &str) -> &str {
    let resource = arn.rsplit(':').find(|part| part.starts_with("stream/")).unwrap_or(arn);
    resource.split('/').nth(1).unwrap_or(resource)
}

fn listed(filter: ShardFilter) -> Option<op::list_shards::ShardFilter> {
    let (kind, timestamp) = match filter {
        ShardFilter::All => return None,
        ShardFilter::AtLatest => ("AT_LATEST", None),
        ShardFilter::AtTrimHorizon => ("AT_TRIM_HORIZON", None),
        ShardFilter::AtTimestamp(ms) => ("AT_TIMESTAMP", Some(Timestamp(ms))),
    };
    Some(op::list_shards::ShardFilter {
        filter_type: Some(kind.to_owned()),
        shard_id: None,
        timestamp,
    })
}

/// Converts a starting position to the iterator type, sequence number and timestamp of a request.
fn place(at: ReadFrom) -> (&'static str, Option<String>, Option<Timestamp>) {
    match at {
        ReadFrom::TrimHorizon => ("TRIM_HORIZON", None, None),
        ReadFrom::Latest => ("LATEST", None, None),
        ReadFrom::AtTimestamp(ms) => ("AT_TIMESTAMP", None, Some(Timestamp(ms))),
        ReadFrom::At(number) => ("AT_SEQUENCE_NUMBER", Some(number.to_string()), None),
        ReadFrom::After(number) => ("AFTER_SEQUENCE_NUMBER", Some(number.to_string()), None),
    }
}

fn range(range: &HashKeyRange) -> Option<HashRange> {
    let (start, end) = (range.starting_hash_key.parse(), range.ending_hash_key.parse());
    HashRange::new(start.ok()?, end.ok()?)
}

fn lineage(shard: &ShardDescription) -> Option<Shard> {
    let numbers = &shard.sequence_number_range;
    let ending = match &numbers.ending_sequence_number {
        None => None,
        Some(text) => Some(text.parse().ok()?),
    };
    Some(Shard {
        id: shard.shard_id.as_str().into(),
        parent: shard.parent_shard_id.as_deref().map(ShardId::from),
        adjacent_parent: shard.adjacent_parent_shard_id.as_deref().map(ShardId::from),
        range: range(&shard.hash_key_range)?,
        starting: numbers.starting_sequence_number.parse().ok()?,
        ending,
    })
}

fn children(children: &[op::ChildShard]) -> Option<Vec<ChildShard>> {
    let child = |child: &op::ChildShard| {
        Some(ChildShard {
            id: child.shard_id.as_str().into(),
            parents: child.parent_shards.iter().map(|id| id.as_str().into()).collect(),
            range: range(&child.hash_key_range)?,
        })
    };
    children.iter().map(child).collect()
}

fn consumer(consumer: ConsumerDescription) -> FanOutConsumer {
    FanOutConsumer {
        arn: consumer.consumer_arn,
        name: consumer.consumer_name,
        active: matches!(consumer.consumer_status, Status::Active | Status::Updating),
    }
}

fn put_entry(entry: &PutEntry) -> op::put_records::PutRecordsEntry<'_> {
    op::put_records::PutRecordsEntry {
        partition_key: Cow::Borrowed(entry.key.as_str()),
        explicit_hash_key: entry.hash.map(|hash| Cow::Owned(hash.to_string())),
        data: Payload::Raw(&entry.data),
    }
}

fn entry_result(outcome: op::put_records::EntryOutcome) -> PutEntryResult {
    use op::put_records::EntryOutcome;
    match outcome {
        EntryOutcome::Placed { shard, sequence } => {
            PutEntryResult::Placed(Placement { shard: ShardId::from_index(shard), sequence })
        }
        EntryOutcome::Failed { code, message } => PutEntryResult::Failed {
            fault: Fault::of(code.name(), None),
            code: code.name().to_owned(),
            message,
        },
    }
}
