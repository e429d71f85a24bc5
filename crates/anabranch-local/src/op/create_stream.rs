//! `CreateStream`: creates a stream whose shards divide the hash range evenly. It is CREATING for
//! `create_delay_ms`, then ACTIVE.

use crate::change::{Creation, NewShard, StreamMode};
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::target::StreamModeDetails;
use crate::op::{Operation, tags};
use crate::shard::high_limb;
use anabranch_model::hash::HashRange;
use anabranch_model::limits;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Request of `CreateStream`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    pub stream_name: Option<String>,
    pub shard_count: Option<i64>,
    pub stream_mode_details: Option<StreamModeDetails>,
    pub tags: Option<BTreeMap<String, String>>,
    #[serde(rename = "MaxRecordSizeInKiB")]
    pub max_record_size_in_kib: Option<i64>,
}

impl Engine {
    /// Creates a stream.
    pub fn create_stream(&self, request: &Request) -> Result<(), ApiError> {
        let name = check(request)?;
        self.run(Operation::CreateStream, Some(name), || {
            self.create(name, |now_ms, id, account_shards| {
                let (mode, count) = shape(request)?;
                self.check_shard_limit(account_shards, count as usize)?;
                let high = high_limb(now_ms, []);
                let new = |range| NewShard { range, parents: Vec::new(), high };
                Ok(Creation {
                    id,
                    mode,
                    shards: HashRange::divide_all(count).into_iter().map(new).collect(),
                    tags: request.tags.clone().unwrap_or_default(),
                    record_max_kib: request
                        .max_record_size_in_kib
                        .and_then(|kib| u32::try_from(kib).ok())
                        .unwrap_or(RECORD_MAX_KIB_DEFAULT),
                    until_ms: now_ms.saturating_add(self.options().create_delay_ms),
                })
            })
        })
    }

    /// Returns an error if `more` shards, in addition to `have`, exceed the account's limit.
    pub(crate) fn check_shard_limit(&self, have: usize, more: usize) -> Result<(), ApiError> {
        let limit = self.options().shard_limit;
        if have + more <= limit as usize {
            return Ok(());
        }
        let (account, region) = (&self.home.account, &self.home.region);
        Err(ApiError::limit_exceeded(format!(
            "This request would exceed the shard limit for the account {account} in {region}. \
             Current shard count for the account: {have}. Limit: {limit}. Number of additional \
             shards that would have resulted from this request: {more}. Refer to the AWS Service \
             Limits page (http://docs.aws.amazon.com/general/latest/gr/aws_service_limits.html) \
             for current limits and how to request higher limits."
        )))
    }
}

/// Maximum record size, in KiB, of a stream whose request names none.
#[expect(clippy::cast_possible_truncation, reason = "a quota of four digits")]
const RECORD_MAX_KIB_DEFAULT: u32 = (limits::RECORD_MAX_BYTES_DEFAULT / 1024) as u32;
/// The service's bounds for the maximum record size, in KiB.
#[expect(clippy::cast_possible_wrap, reason = "quotas of five digits")]
pub(crate) const RECORD_MAX_KIB: (i64, i64) =
    (limits::RECORD_MAX_KIB_LOWEST as i64, limits::RECORD_MAX_KIB_HIGHEST as i64);

fn check(request: &Request) -> Result<&str, ApiError> {
    let mode = request.stream_mode_details.as_ref().map(|mode| mode.stream_mode.as_str());
    let (least, most) = RECORD_MAX_KIB;
    Constraints::new()
        .within(request.shard_count, "shardCount", 1, 100_000)
        .name(request.stream_name.as_deref(), "streamName")
        .one_of(mode, "streamModeDetails.streamMode", &["PROVISIONED", "ON_DEMAND"])
        .within(request.max_record_size_in_kib, "maxRecordSizeInKiB", least, most)
        .check()?;
    if let Some(tags) = &request.tags {
        tags::check(tags)?;
    }
    Ok(request.stream_name.as_deref().expect("a missing name breaks a constraint"))
}

/// Returns the capacity mode and the number of shards that a request asks for.
fn shape(request: &Request) -> Result<(StreamMode, u32), ApiError> {
    let mode = request.stream_mode_details.as_ref().and_then(StreamModeDetails::mode);
    match (mode.unwrap_or(StreamMode::Provisioned), request.shard_count) {
        (StreamMode::OnDemand, None) => {
            Ok((StreamMode::OnDemand, limits::ON_DEMAND_INITIAL_SHARDS))
        }
        (StreamMode::OnDemand, Some(_)) => Err(ApiError::validation(
            "ShardCount must not be specified for a stream in on-demand mode.",
        )),
        (StreamMode::Provisioned, Some(count)) => Ok((
            StreamMode::Provisioned,
            u32::try_from(count).expect("the constraint bounds the count"),
        )),
        (StreamMode::Provisioned, None) => Err(ApiError::validation(
            "ShardCount must be specified for a stream in provisioned mode.",
        )),
    }
}
