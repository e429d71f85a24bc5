//! A local stream whose changes complete at once, with operations outside of `StreamApi`.

use crate::network::Transport;
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::{
    Operation, StreamTarget, create_stream, delete_stream, merge_shards, split_shard,
};
use anabranch_local::{Engine, EngineOptions, Local};
use std::sync::Arc;

/// A server on a free port, and the engine behind it.
pub(crate) struct StreamFixture {
    local: Local,
    wire: Transport,
}

impl StreamFixture {
    pub(crate) async fn new() -> Self {
        Self::over(Transport::Http).await
    }

    pub(crate) async fn over(wire: Transport) -> Self {
        let options =
            EngineOptions { shard_limit: 20_000, heartbeat_ms: 50, ..EngineOptions::instant() };
        Self { local: wire.start(Local::builder().with_options(options)).await, wire }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.local.engine()
    }

    pub(crate) fn sdk_config(&self) -> aws_types::SdkConfig {
        self.wire.config(&self.local)
    }

    pub(crate) fn create(&self, name: &str, shards: i64) {
        let request = create_stream::Request {
            stream_name: Some(name.to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        self.engine().create_stream(&request).unwrap();
    }

    pub(crate) fn delete(&self, name: &str) {
        let request =
            delete_stream::Request { stream: StreamTarget::named(name), ..Default::default() };
        self.engine().delete_stream(&request).unwrap();
    }

    /// Splits a shard that covers the whole hash key space in the middle.
    pub(crate) fn split(&self, stream: &str, shard: &str) {
        let request = split_shard::Request {
            stream: StreamTarget::named(stream),
            shard_to_split: Some(shard.to_owned()),
            new_starting_hash_key: Some((1_u128 << 127).to_string()),
        };
        self.engine().split_shard(&request).unwrap();
    }

    pub(crate) fn merge(&self, stream: &str, shard: &str, neighbour: &str) {
        let request = merge_shards::Request {
            stream: StreamTarget::named(stream),
            shard_to_merge: Some(shard.to_owned()),
            adjacent_shard_to_merge: Some(neighbour.to_owned()),
        };
        self.engine().merge_shards(&request).unwrap();
    }

    /// Injects a fault into the next call of an operation.
    pub(crate) fn strike(&self, operation: Operation, effect: FaultEffect) {
        self.engine().faults().add(FaultRule {
            operation: Some(operation),
            stream: None,
            shard: None,
            probability: 1.0,
            skip: 0,
            count: Some(1),
            effect,
        });
    }
}
