//! Converts events to KCL's metrics: names, dimensions and levels.

use super::MetricsLevel;
use super::buffer::{MetricSeries, MetricUnit};
use crate::event::{Event, LeaseEvent, ShardEvent};
use crate::time::millis;
use anabranch_model::lease::LeaseKey;
use std::sync::Arc;

/// Converts events to KCL's metrics.
#[derive(Debug)]
pub(super) struct KclMetrics {
    /// Highest level that is published.
    pub(super) level: MetricsLevel,
    /// True if the worker id is a dimension.
    pub(super) worker_dimension: bool,
    /// True if the stream is a dimension of shard metrics.
    pub(super) stream_dimension: bool,
    /// Worker id, once the worker has joined.
    worker: Option<Arc<str>>,
    /// Number of shards being read.
    shards: u64,
    /// Numbers of workers and leases of the fleet, once known.
    fleet: Option<(u64, u64)>,
}

impl Default for KclMetrics {
    fn default() -> Self {
        let (worker, shards, fleet) = (None, 0, None);
        let (worker_dimension, stream_dimension) = (false, false);
        Self {
            level: MetricsLevel::Detailed,
            worker_dimension,
            stream_dimension,
            worker,
            shards,
            fleet,
        }
    }
}

/// Subject of a metric, which determines its dimensions.
#[derive(Clone, Copy)]
enum MetricScope<'a> {
    /// A shard.
    Shard(&'a LeaseKey),
    /// The worker.
    Worker,
    /// The application.
    Application,
}

use MetricUnit::{Bytes, Count, Milliseconds};
use MetricsLevel::{Detailed, Summary};

impl KclMetrics {
    /// Passes the metrics of an event to `add`.
    pub(super) fn on_event(&mut self, event: &Event, add: impl FnMut(MetricSeries, f64)) {
        match event {
            Event::Shard(event) => self.hear_shard(event, add),
            Event::Lease(event) => self.hear_lease(event, add),
            Event::Producer(_) | Event::Relay(_) => {}
        }
    }

    /// Passes the metrics that are sampled at each publication to `add`.
    pub(super) fn before_flush(&self, mut add: impl FnMut(MetricSeries, f64)) {
        let operation = "RenewAllLeases";
        self.put(
            &mut add,
            Summary,
            operation,
            MetricScope::Worker,
            ("CurrentLeases", Count),
            self.shards,
        );
        if let Some((workers, leases)) = self.fleet {
            let (operation, of) = ("TakeLeases", MetricScope::Worker);
            self.put(&mut add, Summary, operation, of, ("NumWorkers", Count), workers);
            self.put(&mut add, Detailed, operation, of, ("TotalLeases", Count), leases);
        }
    }

    fn hear_shard(&mut self, event: &ShardEvent, mut add: impl FnMut(MetricSeries, f64)) {
        let mut shards = self.shards;
        let mut say = |level, shard: &LeaseKey, metric, value| {
            self.put(&mut add, level, "ProcessTask", MetricScope::Shard(shard), metric, value);
        };
        match event {
            ShardEvent::Started { .. } => shards += 1,
            ShardEvent::Stopped { .. } => shards = shards.saturating_sub(1),
            ShardEvent::Metrics { shard, records, bytes, calls, busy, behind_latest, .. } => {
                say(Summary, shard, ("RecordsProcessed", Count), *records);
                say(Summary, shard, ("DataBytesProcessed", Bytes), *bytes);
                if let Some(mean_ms) = millis(*busy).checked_div(*calls) {
                    let time = "RecordProcessor.processRecords.Time";
                    say(Summary, shard, (time, Milliseconds), mean_ms);
                    say(Summary, shard, ("Time", Milliseconds), mean_ms);
                    say(Summary, shard, ("Success", Count), 1);
                }
                if let Some(behind_ms) = behind_latest.map(millis) {
                    let metric = ("MillisBehindLatest", Milliseconds);
                    say(Summary, shard, metric, behind_ms);
                    let of = MetricScope::Application;
                    self.put(&mut add, Summary, "ApplicationTracker", of, metric, behind_ms);
                }
            }
            ShardEvent::HandlerFailed { shard, .. } => say(Summary, shard, ("Success", Count), 0),
            ShardEvent::Fetched { shard, took, .. } => {
                say(Detailed, shard, ("KinesisDataFetcher.getRecords.Success", Count), 1);
                if let Some(took_ms) = took.map(millis) {
                    let time = "KinesisDataFetcher.getRecords.Time";
                    say(Detailed, shard, (time, Milliseconds), took_ms);
                }
            }
            ShardEvent::FetchFailed { shard, .. } => {
                say(Detailed, shard, ("KinesisDataFetcher.getRecords.Success", Count), 0);
            }
            ShardEvent::IteratorRenewed { shard } => {
                say(Summary, shard, ("ExpiredIterator", Count), 1);
            }
            ShardEvent::Checkpointed { shard, .. } => {
                say(Detailed, shard, ("UpdateLease.Success", Count), 1);
            }
            ShardEvent::CheckpointFailed { shard, .. } => {
                say(Detailed, shard, ("UpdateLease.Success", Count), 0);
            }
            ShardEvent::RetentionGap { .. }
            | ShardEvent::AggregateMisrouted { .. }
            | ShardEvent::DuplicateDropped { .. }
            | ShardEvent::AggregateUnreadable { .. }
            | ShardEvent::DeadLettered { .. }
            | ShardEvent::DeadLetterFailed { .. }
            | ShardEvent::CallbackFailed { .. }
            | ShardEvent::Stuck { .. } => {}
        }
        self.shards = shards;
    }

    fn hear_lease(&mut self, event: &LeaseEvent, mut add: impl FnMut(MetricSeries, f64)) {
        if let LeaseEvent::Joined { worker } = event {
            self.worker = Some(worker.to_string().into());
        }
        if let LeaseEvent::FleetChanged { workers, leases } = event {
            self.fleet = Some((*workers as u64, *leases as u64));
        }
        let mut say = |level, operation, metric, value| {
            self.put(&mut add, level, operation, MetricScope::Worker, metric, value);
        };
        match event {
            LeaseEvent::LeaseLost { .. } => {
                say(Summary, "RenewAllLeases", ("LostLeases", Count), 1);
            }
            LeaseEvent::LeaseTaken { .. } => {
                say(Summary, "TakeLeases", ("TakenLeases", Count), 1);
                say(Detailed, "TakeLeases", ("TakeLease.Success", Count), 1);
            }
            LeaseEvent::WorkerFenced { .. } => {
                say(Summary, "TakeLeases", ("ExpiredLeases", Count), 1);
            }
            LeaseEvent::StoreCallFailed { .. } => {
                say(Summary, "RenewAllLeases", ("Success", Count), 0);
            }
            LeaseEvent::HashRangeHole { .. } => {
                let metric = ("NumStreamsWithPartialLeases", Count);
                say(Summary, "PeriodicShardSyncManager", metric, 1);
            }
            LeaseEvent::ShardEnded { children, .. } => {
                let made = children.len() as u64;
                say(Detailed, "ShutdownTask", ("CreateLease.Success", Count), made);
            }
            _ => {}
        }
    }

    fn put(
        &self,
        add: &mut impl FnMut(MetricSeries, f64),
        level: MetricsLevel,
        operation: &'static str,
        of: MetricScope<'_>,
        (name, unit): (&'static str, MetricUnit),
        value: u64,
    ) {
        if level > self.level {
            return;
        }
        let mut dimensions: Vec<(&'static str, Arc<str>)> = vec![("Operation", operation.into())];
        match of {
            MetricScope::Shard(shard) => {
                dimensions.push(("ShardId", shard.shard.as_str().into()));
                if self.stream_dimension {
                    dimensions.push(("StreamId", shard.stream.as_str().into()));
                }
            }
            MetricScope::Worker if self.worker_dimension => {
                let worker = self.worker.iter().cloned();
                dimensions.extend(worker.map(|worker| ("WorkerIdentifier", worker)));
            }
            MetricScope::Worker | MetricScope::Application => {}
        }
        add(MetricSeries { name, unit, dimensions }, float(value));
    }
}

#[expect(clippy::cast_precision_loss, reason = "CloudWatch keeps doubles")]
fn float(value: u64) -> f64 {
    value as f64
}
