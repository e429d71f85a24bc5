//! The shared part of all operations: fault injection, and errors that name a stream or shard.

use crate::change::StreamMode;
use crate::engine::{Engine, EngineView, StreamRef};
use crate::error::{ApiError, ErrorKind};
use crate::fault::{FaultSite, ReplyFate};
use crate::lifecycle::Status;
use crate::op::Operation;
use crate::stream::Stream;
use crate::token::ShardIterator;
use anabranch_model::ids::ShardId;

/// Returns the error that takes the place of a lost reply.
pub(crate) fn reply_lost() -> ApiError {
    ApiError::new(
        ErrorKind::ReplyLost,
        "The operation took effect; a fault rule discarded its \
                                         reply.",
    )
}

impl Engine {
    /// Runs an operation that touches no particular shard, and injects faults before and after it.
    pub(crate) fn run<T>(
        &self,
        operation: Operation,
        stream: Option<&str>,
        body: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        self.run_at(FaultSite { operation, stream, shards: &[] }, body)
    }

    /// Runs an operation, and injects faults before and after it.
    pub(crate) fn run_at<T>(
        &self,
        site: FaultSite<'_>,
        body: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let fate = self.faults().before(site)?;
        let result = body();
        match fate {
            ReplyFate::Sent => result,
            ReplyFate::Lost => Err(reply_lost()),
        }
    }

    /// Returns how long a call must be delayed according to the fault rules, in milliseconds. Async
    /// callers of the engine ask this first and wait by the engine's clock.
    pub fn delay_ms(
        &self,
        operation: Operation,
        stream: &StreamRef<'_>,
        shard_id: Option<&str>,
        iterator: Option<&str>,
    ) -> u64 {
        let iterator = iterator.and_then(ShardIterator::from_text);
        let shard = shard_id.and_then(|id| ShardId::from(id).index());
        let shards: Vec<u32> = shard.or(iterator.as_ref().map(|it| it.shard)).into_iter().collect();
        let resolved = self.resolve(stream).ok();
        let stream = resolved.as_deref().or(iterator.as_ref().map(|it| it.stream.as_str()));
        self.faults().delay_ms(FaultSite { operation, stream, shards: &shards })
    }

    /// Returns an error if the stream is not ACTIVE.
    pub(crate) fn require_active(&self, scene: &EngineView<'_>) -> Result<(), ApiError> {
        match scene.status {
            Status::Active => Ok(()),
            status => Err(self.not_active(&scene.stream.name, status)),
        }
    }

    /// Returns an error if the service chooses the shards of the stream.
    pub(crate) fn require_provisioned(scene: &EngineView<'_>) -> Result<(), ApiError> {
        match scene.topology.mode {
            StreamMode::Provisioned => Ok(()),
            StreamMode::OnDemand => Err(ApiError::validation(
                "This API is only supported for data streams with the provisioned capacity mode.",
            )),
        }
    }

    pub(crate) fn not_active(&self, stream: &str, status: Status) -> ApiError {
        let account = &self.home.account;
        let state = status.name();
        ApiError::in_use(format!(
            "Stream {stream} under account {account} not ACTIVE, instead in state {state}"
        ))
    }

    pub(crate) fn shard_not_found(&self, stream: &str, shard: &str) -> ApiError {
        let account = &self.home.account;
        ApiError::not_found(format!(
            "Could not find shard {shard} in stream {stream} under account {account}."
        ))
    }

    pub(crate) fn shard_does_not_exist(&self, stream: &str, shard: &str) -> ApiError {
        let account = &self.home.account;
        ApiError::not_found(format!(
            "Shard {shard} in stream {stream} under account {account} does not exist"
        ))
    }

    pub(crate) fn rate_exceeded(&self, stream: &Stream, shard: &ShardId) -> String {
        let (name, account) = (&stream.name, &self.home.account);
        format!("Rate exceeded for shard {shard} in stream {name} under account {account}.")
    }
}
