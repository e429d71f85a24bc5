//! Dispatch of Kinesis operations: decodes a request by the operation's name, calls the engine and
//! encodes the reply.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::body::ResponseBody;
use super::fault_delay::delay;
use super::reply;
use super::route::{ReplyDropped, Service};
use super::subscribe;
use super::target::Encoding;
use crate::buffer;
use crate::engine::Engine;
use crate::error::{ApiError, ErrorKind};
use crate::op::Operation;
use crate::wire::cbor::value::to_cbor;
use crate::wire::{self, get_records, put_record, put_records};

/// Answers one Kinesis request.
pub(super) async fn answer(
    service: &Arc<Service>,
    operation: &str,
    encoding: Encoding,
    body: &[u8],
) -> Result<Response<ResponseBody>, ReplyDropped> {
    delay(&service.engine, operation, encoding, body).await;
    if operation == "SubscribeToShard" {
        return subscribe::answer(service, encoding, body);
    }
    let engine = &service.engine;
    let outcome = match guarded(|| run(engine, operation, encoding, body)) {
        Ok(body) => engine.durable().await.map(|()| body),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(body) => Ok(reply::whole(200, encoding.content_type(), buffer::share(body))),
        Err(error) if error.kind == ErrorKind::ReplyLost => Err(ReplyDropped),
        Err(error) => Ok(reply::error(&error, encoding)),
    }
}

/// Runs `work` and turns a panic into an internal error, so that it fails only this request.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, ApiError>) -> Result<T, ApiError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ApiError::internal()))
}

/// Runs one operation and returns the encoded reply.
fn run(
    engine: &Engine,
    operation: &str,
    encoding: Encoding,
    body: &[u8],
) -> Result<Vec<u8>, ApiError> {
    let unknown = |_| ApiError::new(ErrorKind::UnknownOperation, "");
    let operation: Operation = operation.parse().map_err(unknown)?;
    let call = OperationCall { encoding, body };
    macro_rules! cold {
        ($method:ident) => {
            call.serve(|request| engine.$method(&request))
        };
    }
    match operation {
        Operation::PutRecords => call.put_records(engine),
        Operation::PutRecord => call.put_record(engine),
        Operation::GetRecords => call.get_records(engine),
        Operation::CreateStream => cold!(create_stream),
        Operation::DeleteStream => cold!(delete_stream),
        Operation::DescribeStream => cold!(describe_stream),
        Operation::DescribeStreamSummary => cold!(describe_stream_summary),
        Operation::DescribeLimits => cold!(describe_limits),
        Operation::DescribeAccountSettings => cold!(describe_account_settings),
        Operation::ListStreams => cold!(list_streams),
        Operation::ListShards => cold!(list_shards),
        Operation::GetShardIterator => cold!(get_shard_iterator),
        Operation::SplitShard => cold!(split_shard),
        Operation::MergeShards => cold!(merge_shards),
        Operation::UpdateShardCount => cold!(update_shard_count),
        Operation::UpdateStreamMode => cold!(update_stream_mode),
        Operation::IncreaseStreamRetentionPeriod => cold!(increase_stream_retention_period),
        Operation::DecreaseStreamRetentionPeriod => cold!(decrease_stream_retention_period),
        Operation::RegisterStreamConsumer => cold!(register_stream_consumer),
        Operation::DeregisterStreamConsumer => cold!(deregister_stream_consumer),
        Operation::DescribeStreamConsumer => cold!(describe_stream_consumer),
        Operation::ListStreamConsumers => cold!(list_stream_consumers),
        Operation::AddTagsToStream => cold!(add_tags_to_stream),
        Operation::RemoveTagsFromStream => cold!(remove_tags_from_stream),
        Operation::ListTagsForStream => cold!(list_tags_for_stream),
        Operation::TagResource => cold!(tag_resource),
        Operation::UntagResource => cold!(untag_resource),
        Operation::ListTagsForResource => cold!(list_tags_for_resource),
        Operation::StartStreamEncryption => cold!(start_stream_encryption),
        Operation::StopStreamEncryption => cold!(stop_stream_encryption),
        Operation::UpdateMaxRecordSize => cold!(update_max_record_size),
        Operation::EnableEnhancedMonitoring => cold!(enable_enhanced_monitoring),
        Operation::DisableEnhancedMonitoring => cold!(disable_enhanced_monitoring),
        // `answer` handles it before, because its reply is a stream.
        Operation::SubscribeToShard => Err(ApiError::internal()),
    }
}

/// An encoded request body.
#[derive(Clone, Copy)]
pub(super) struct OperationCall<'a> {
    pub(super) encoding: Encoding,
    pub(super) body: &'a [u8],
}

impl OperationCall<'_> {
    pub(super) fn request<Q: DeserializeOwned>(self) -> Result<Q, ApiError> {
        match self.encoding {
            Encoding::Json => wire::read_json(self.body),
            Encoding::Cbor => {
                serde_json::from_value(wire::read_cbor(self.body)?).map_err(wire::unreadable)
            }
        }
    }

    fn serve<Q: DeserializeOwned, R: Serialize>(
        self,
        operation: impl FnOnce(Q) -> Result<R, ApiError>,
    ) -> Result<Vec<u8>, ApiError> {
        let reply = operation(self.request()?)?;
        let reply = serde_json::to_value(reply).map_err(|_| ApiError::internal())?;
        // An operation without a reply has an empty body, as on AWS.
        Ok(match (self.encoding, reply) {
            (_, serde_json::Value::Null) => Vec::new(),
            (Encoding::Json, reply) => reply.to_string().into_bytes(),
            (Encoding::Cbor, reply) => to_cbor(&reply),
        })
    }

    fn put_records(self, engine: &Engine) -> Result<Vec<u8>, ApiError> {
        match self.encoding {
            Encoding::Json => {
                let request = put_records::from_json(self.body)?;
                engine.put_records(&request).map(|reply| put_records::to_json(&reply))
            }
            Encoding::Cbor => {
                let request = put_records::from_cbor(self.body)?;
                engine.put_records(&request).map(|reply| put_records::to_cbor(&reply))
            }
        }
    }

    fn put_record(self, engine: &Engine) -> Result<Vec<u8>, ApiError> {
        match self.encoding {
            Encoding::Json => {
                let request = put_record::from_json(self.body)?;
                engine.put_record(&request).map(|reply| put_record::to_json(&reply))
            }
            Encoding::Cbor => {
                let request = put_record::from_cbor(self.body)?;
                engine.put_record(&request).map(|reply| put_record::to_cbor(&reply))
            }
        }
    }

    fn get_records(self, engine: &Engine) -> Result<Vec<u8>, ApiError> {
        match self.encoding {
            Encoding::Json => {
                let request = wire::read_json(self.body)?;
                engine.get_records(&request).map(|reply| get_records::to_json(&reply))
            }
            Encoding::Cbor => {
                let fields = wire::read_cbor(self.body)?;
                let request = Deserialize::deserialize(&fields).map_err(wire::unreadable)?;
                engine.get_records(&request).map(|reply| get_records::to_cbor(&reply))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_requests_internal_failure() {
        let outcome = guarded(|| -> Result<(), ApiError> { panic!("on purpose") });
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::InternalFailure);
        assert!(guarded(|| Ok(())).is_ok());
    }
}
