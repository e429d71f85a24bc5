//! The shared part of switching shard-level metrics on and off.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Request of `EnableEnhancedMonitoring` and `DisableEnhancedMonitoring`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub shard_level_metrics: Option<Vec<String>>,
}

/// Reply to `EnableEnhancedMonitoring` and `DisableEnhancedMonitoring`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub stream_name: String,
    #[serde(rename = "StreamARN")]
    pub stream_arn: String,
    pub current_shard_level_metrics: Vec<String>,
    pub desired_shard_level_metrics: Vec<String>,
}

/// All shard-level metrics. A request may name them together as `ALL`.
const METRICS: &[&str] = &[
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
];

type MetricNames = BTreeSet<String>;

impl Engine {
    /// Changes the shard-level metrics of a stream. `change` maps the current metrics and the
    /// requested ones to the new ones.
    pub(crate) fn monitor(
        &self,
        operation: Operation,
        request: &Request,
        change: impl FnOnce(&MetricNames, &MetricNames) -> MetricNames,
    ) -> Result<Reply, ApiError> {
        let asked = check(request)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(operation, Some(&name), || {
            let (mut before, mut after) = (MetricNames::new(), MetricNames::new());
            self.change_stream(&name, |scene| {
                before.clone_from(&scene.topology.metrics);
                after = change(&before, &asked);
                Ok(Some(ChangeKind::Monitor { metrics: after.clone() }))
            })?;
            Ok(Reply {
                stream_arn: self.home.stream_arn(&name),
                stream_name: name.to_string(),
                current_shard_level_metrics: before.into_iter().collect(),
                desired_shard_level_metrics: after.into_iter().collect(),
            })
        })
    }
}

fn check(request: &Request) -> Result<MetricNames, ApiError> {
    let asked = request.shard_level_metrics.as_ref();
    let mut constraints = Constraints::new();
    constraints.present(asked, "shardLevelMetrics");
    for metric in asked.into_iter().flatten().filter(|metric| *metric != "ALL") {
        constraints.one_of(Some(metric), "shardLevelMetrics", METRICS);
    }
    constraints.check()?;
    let asked = asked.into_iter().flatten();
    if asked.clone().any(|metric| metric == "ALL") {
        return Ok(METRICS.iter().map(|metric| (*metric).to_owned()).collect());
    }
    Ok(asked.cloned().collect())
}
