//! [`StreamApi`] on the AWS SDK: one SDK request per call.
//!
//! The future of an SDK request takes thousands of bytes, and each shard has a task that may make
//! any of these calls. The futures are therefore boxed, so that the task only pays for the one in
//! use.

use super::super::api::{
    FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom, ShardFilter,
    ShardIterator, ShardList, StreamApi, StreamError, StreamSummary, Subscription,
};
use super::super::cbor::records::with_captured_records;
use super::super::consumer_limit;
use super::AwsKinesis;
use super::date::ReplyDate;
use super::fallback::CallEffect;
use super::fault::AwsCall;
use super::reply;
use anabranch_model::ids::{ShardId, StreamName, is_arn};
use anabranch_model::limits;
use anabranch_model::sequence::SequenceNumber;
use aws_sdk_kinesis::config::StalledStreamProtectionConfig;
use aws_sdk_kinesis::error::ProvideErrorMetadata;
use aws_sdk_kinesis::primitives::{Blob, DateTime};
use aws_sdk_kinesis::types::{
    self, PutRecordsRequestEntry, ShardFilterType, ShardIteratorType, StartingPosition,
};

/// Returns how a request names the stream, as name and ARN: by ARN if the user gave one, otherwise
/// by name.
fn target(stream: &StreamName) -> (Option<String>, Option<String>) {
    let text = stream.as_str().to_owned();
    if stream.is_arn() { (None, Some(text)) } else { (Some(text), None) }
}

impl StreamApi for AwsKinesis {
    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let call = AwsCall::on("DescribeStreamSummary", stream);
        let (name, arn) = target(stream);
        let request = self.client.describe_stream_summary();
        let request = request.set_stream_name(name).set_stream_arn(arn);
        let reply = Box::pin(request.send()).await.map_err(|error| call.failed(error))?;
        let summary = reply.stream_description_summary;
        call.summary(summary.ok_or_else(|| call.unreadable("summary", "absent"))?)
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        let call = AwsCall::on("ListShards", stream);
        let page_size = i32::try_from(limits::LIST_SHARDS_MAX_RESULTS).ok();
        let (name, arn) = target(stream);
        let first_date = ReplyDate::default();
        let first = self.client.list_shards();
        let first = first.set_stream_name(name).set_stream_arn(arn).set_max_results(page_size);
        let first = first.set_shard_filter(listed(filter));
        let send = || Box::pin(first.clone().customize().interceptor(first_date.clone()).send());
        let page = self.send_with_fallback(CallEffect::Reads, send).await;
        let mut page = page.map_err(|error| call.failed(error))?;
        let mut shards = Vec::new();
        loop {
            // The service sends a list on every page, even an empty one. A reply without a list did
            // not come from Kinesis, and must not pass for a stream without shards.
            let listed = page.shards.ok_or_else(|| call.unreadable("list of shards", "absent"))?;
            for shard in listed {
                shards.push(call.shard(shard)?);
            }
            let Some(token) = page.next_token else {
                // Every stream has a shard, so an empty list did not come from Kinesis. The
                // exception is a timestamp before the stream was created, when no shard was open.
                if shards.is_empty() && !matches!(filter, ShardFilter::AtTimestamp(_)) {
                    return Err(call.unreadable("list of shards", "empty"));
                }
                return Ok(ShardList { shards, service_ms: first_date.ms() });
            };
            // The token implies the stream and the filter. The service rejects both next to a
            // token.
            let next = self.client.list_shards().next_token(token).set_max_results(page_size);
            page = Box::pin(next.send()).await.map_err(|error| call.failed(error))?;
        }
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        let call = AwsCall { shard: Some(shard), ..AwsCall::on("GetShardIterator", stream) };
        let (name, arn) = target(stream);
        let (kind, number, moment) = place(at);
        let request = self.client.get_shard_iterator();
        let request = request.set_stream_name(name).set_stream_arn(arn).shard_id(shard.as_str());
        let request = request.shard_iterator_type(kind).set_starting_sequence_number(number);
        let request = request.set_timestamp(moment);
        let reply =
            self.send_with_fallback(CallEffect::Reads, || Box::pin(request.clone().send())).await;
        let text = reply.map_err(|error| call.failed(error))?.shard_iterator;
        Ok(ShardIterator(text.ok_or_else(|| call.unreadable("iterator", "absent"))?.into()))
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        let call = AwsCall::on("GetRecords", stream);
        let (_, arn) = target(stream);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let request = self.client.get_records().set_stream_arn(arn);
        let request = request.shard_iterator(iterator.0.as_ref()).limit(limit);
        let reply = self
            .send_with_fallback(CallEffect::Reads, || {
                with_captured_records(Box::pin(request.clone().send()))
            })
            .await;
        let (reply, given) = reply.map_err(|error| call.failed(error))?;
        let records = match given {
            Some(records) => records,
            None => call.records(reply.records)?,
        };
        // A reply without an iterator marks the end of the shard. Kinesis then sends other members;
        // a reply without any did not come from Kinesis.
        let says_nothing = reply.next_shard_iterator.is_none()
            && reply.millis_behind_latest.is_none()
            && reply.child_shards.is_none()
            && records.is_empty();
        if says_nothing {
            return Err(call.unreadable("body", ""));
        }
        Ok(FetchedRecords {
            records,
            next: reply.next_shard_iterator.map(|text| ShardIterator(text.into())),
            behind_ms: reply.millis_behind_latest.and_then(|ms| ms.try_into().ok()).unwrap_or(0),
            children: call.children(reply.child_shards)?,
        })
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        let call = consumer_call("RegisterStreamConsumer", &stream.arn);
        let request = self.client.register_stream_consumer();
        let request = request.stream_arn(&stream.arn).consumer_name(name);
        let reply =
            self.send_with_fallback(CallEffect::Writes, || Box::pin(request.clone().send())).await;
        let consumer = match reply {
            Ok(reply) => reply.consumer,
            Err(error) => {
                let by_limit = error.code() == Some("LimitExceededException")
                    && !error.message().is_some_and(consumer_limit::is_rate);
                let error = call.failed(error);
                return Err(if by_limit {
                    self.by_which_limit(stream, error).await
                } else {
                    error
                });
            }
        };
        call.consumer(consumer.map(reply::consumer))
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        let call = consumer_call("DescribeStreamConsumer", &stream.arn);
        let request = self.client.describe_stream_consumer();
        // A consumer on a stream of another account can only be described by its own ARN.
        let request = if is_arn(name) {
            request.consumer_arn(name)
        } else {
            request.stream_arn(&stream.arn).consumer_name(name)
        };
        let reply =
            self.send_with_fallback(CallEffect::Reads, || Box::pin(request.clone().send())).await;
        let consumer = reply.map_err(|error| call.failed(error))?.consumer_description;
        call.consumer(consumer.map(reply::described))
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        let call = consumer_call("DeregisterStreamConsumer", &consumer.arn);
        let request = self.client.deregister_stream_consumer().consumer_arn(&consumer.arn);
        let reply =
            self.send_with_fallback(CallEffect::Writes, || Box::pin(request.clone().send())).await;
        reply.map(|_| ()).map_err(|error| call.failed(error))
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        let arn = &consumer.arn;
        let call = AwsCall { shard: Some(shard), ..consumer_call("SubscribeToShard", arn) };
        let (kind, number, moment) = place(at);
        let position = StartingPosition::builder().r#type(kind);
        let position = position.set_sequence_number(number).set_timestamp(moment).build();
        let position = position.map_err(|error| call.unreadable("position", &error.to_string()))?;
        let request = self.client.subscribe_to_shard().consumer_arn(arn);
        let request = request.shard_id(shard.as_str()).starting_position(position);
        // The stalled-stream protection would end a quiet subscription. Subscriptions have their
        // own time-out.
        let quiet = StalledStreamProtectionConfig::disabled();
        let quiet = aws_sdk_kinesis::Config::builder().stalled_stream_protection(quiet);
        let request = request.customize().config_override(quiet);
        let reply = Box::pin(request.send()).await.map_err(|error| call.failed(error))?;
        Ok(super::subscribe::events(reply.event_stream, arn, shard))
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        let call = AwsCall::on("PutRecords", stream);
        let (name, arn) = target(stream);
        let entry = |entry: &PutEntry| {
            PutRecordsRequestEntry::builder()
                .partition_key(entry.key.as_str())
                .set_explicit_hash_key(entry.hash.map(|hash| hash.to_string()))
                .data(Blob::from_maybe_shared(entry.data.clone()))
                .build()
                .expect("an entry needs its data only, which are set")
        };
        let send = || {
            let request = self.puts.put_records().set_stream_name(name.clone());
            let records = entries.iter().map(entry).collect();
            request.set_stream_arn(arn.clone()).set_records(Some(records)).send()
        };
        let reply = self.send_with_fallback(CallEffect::Writes, send).await;
        let reply = reply.map_err(|error| call.failed(error))?;
        if reply.records.len() != entries.len() {
            let count = format!("{} for {} entries", reply.records.len(), entries.len());
            return Err(call.unreadable("number of results", &count));
        }
        reply.records.into_iter().map(|entry| call.entry(entry)).collect()
    }

    async fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> Result<Placement, StreamError> {
        let call = AwsCall::on("PutRecord", stream);
        let (name, arn) = target(stream);
        let request = self.puts.put_record().set_stream_name(name).set_stream_arn(arn);
        let request = request
            .partition_key(entry.key.as_str())
            .set_explicit_hash_key(entry.hash.map(|hash| hash.to_string()))
            .data(Blob::from_maybe_shared(entry.data.clone()))
            .set_sequence_number_for_ordering(after.map(|number| number.to_string()));
        let reply =
            self.send_with_fallback(CallEffect::Writes, || Box::pin(request.clone().send())).await;
        let reply = reply.map_err(|error| call.failed(error))?;
        let sequence = call.sequence(&reply.sequence_number)?;
        Ok(Placement { shard: call.shard_id(reply.shard_id)?, sequence })
    }
}

impl AwsKinesis {
    /// Returns `error` with the fault of the limit that refused the registration.
    async fn by_which_limit(&self, stream: &StreamSummary, error: StreamError) -> StreamError {
        let list = self.client.list_stream_consumers().stream_arn(&stream.arn);
        // One page holds more consumers than a stream may have.
        let list = list.max_results(100);
        let reply =
            self.send_with_fallback(CallEffect::Reads, || Box::pin(list.clone().send())).await;
        let consumers = match reply {
            Ok(reply) => reply.consumers.unwrap_or_default(),
            Err(failed) => {
                let call = consumer_call("ListStreamConsumers", &stream.arn);
                let detail = format!("{}; {}", error.detail, call.failed(failed));
                return StreamError { detail, ..error };
            }
        };
        let creating = consumers
            .iter()
            .filter(|consumer| consumer.consumer_status == types::ConsumerStatus::Creating);
        let (registered, creating) = (consumers.len(), creating.count());
        let fault = consumer_limit::fault(registered, creating);
        let detail = format!("{}; {registered} consumers are registered", error.detail);
        StreamError { fault, detail, ..error }
    }
}

fn consumer_call<'a>(operation: &'static str, arn: &'a str) -> AwsCall<'a> {
    AwsCall { operation, stream: arn, shard: None }
}

fn listed(filter: ShardFilter) -> Option<types::ShardFilter> {
    let builder = types::ShardFilter::builder();
    let builder = match filter {
        ShardFilter::All => return None,
        ShardFilter::AtLatest => builder.r#type(ShardFilterType::AtLatest),
        ShardFilter::AtTrimHorizon => builder.r#type(ShardFilterType::AtTrimHorizon),
        ShardFilter::AtTimestamp(ms) => {
            builder.r#type(ShardFilterType::AtTimestamp).timestamp(moment(ms))
        }
    };
    Some(builder.build().expect("a filter needs its type only, which is set"))
}

/// Converts a starting position to the iterator type, sequence number and timestamp of a request.
fn place(at: ReadFrom) -> (ShardIteratorType, Option<String>, Option<DateTime>) {
    match at {
        ReadFrom::TrimHorizon => (ShardIteratorType::TrimHorizon, None, None),
        ReadFrom::Latest => (ShardIteratorType::Latest, None, None),
        ReadFrom::AtTimestamp(ms) => (ShardIteratorType::AtTimestamp, None, Some(moment(ms))),
        ReadFrom::At(number) => {
            (ShardIteratorType::AtSequenceNumber, Some(number.to_string()), None)
        }
        ReadFrom::After(number) => {
            (ShardIteratorType::AfterSequenceNumber, Some(number.to_string()), None)
        }
    }
}

fn moment(ms: u64) -> DateTime {
    DateTime::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
}
