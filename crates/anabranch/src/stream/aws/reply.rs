//! Converts the SDK's values to the library's types.

use super::super::api::{
    ChildShard, FanOutConsumer, Placement, PutEntryResult, StreamError, StreamStatus, StreamSummary,
};
use super::fault::AwsCall;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::limits;
use anabranch_model::lineage::Shard;
use anabranch_model::record::{PartitionKey, Record};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use aws_sdk_kinesis::primitives::DateTime;
use aws_sdk_kinesis::types;

impl AwsCall<'_> {
    pub(super) fn summary(
        self,
        summary: types::StreamDescriptionSummary,
    ) -> Result<StreamSummary, StreamError> {
        let status = match summary.stream_status {
            types::StreamStatus::Creating => StreamStatus::Creating,
            types::StreamStatus::Active => StreamStatus::Active,
            types::StreamStatus::Updating => StreamStatus::Updating,
            types::StreamStatus::Deleting => StreamStatus::Deleting,
            other => return Err(self.unreadable("stream status", other.as_str())),
        };
        let mode = summary.stream_mode_details.map(|details| details.stream_mode);
        let kib = summary.max_record_size_in_kib.and_then(|kib| usize::try_from(kib).ok());
        Ok(StreamSummary {
            arn: summary.stream_arn,
            status,
            created_ms: millis(summary.stream_creation_timestamp),
            retention_ms: u64::try_from(summary.retention_period_hours).unwrap_or(0) * 3_600_000,
            max_record_bytes: kib.map_or(limits::RECORD_MAX_BYTES_DEFAULT, |kib| kib * 1024),
            on_demand: mode == Some(types::StreamMode::OnDemand),
            ignores_keys: summary.record_distribution_strategy
                == Some(types::RecordDistributionStrategy::Auto),
            open_shards: usize::try_from(summary.open_shard_count).unwrap_or(0),
        })
    }

    pub(super) fn shard(self, shard: types::Shard) -> Result<Shard, StreamError> {
        let numbers = shard
            .sequence_number_range
            .ok_or_else(|| self.unreadable("sequence number range", &shard.shard_id))?;
        let ending = match numbers.ending_sequence_number.as_deref() {
            None | Some("") => None,
            Some(text) => Some(self.sequence(text)?),
        };
        Ok(Shard {
            range: self.range(shard.hash_key_range.as_ref(), &shard.shard_id)?,
            id: shard.shard_id.into(),
            parent: named(shard.parent_shard_id),
            adjacent_parent: named(shard.adjacent_parent_shard_id),
            starting: self.sequence(&numbers.starting_sequence_number)?,
            ending,
        })
    }

    fn range(
        self,
        range: Option<&types::HashKeyRange>,
        shard: &str,
    ) -> Result<HashRange, StreamError> {
        let parsed = range.and_then(|range| {
            let (start, end) = (&range.starting_hash_key, &range.ending_hash_key);
            HashRange::new(start.parse().ok()?, end.parse().ok()?)
        });
        parsed.ok_or_else(|| self.unreadable("hash key range", shard))
    }

    pub(super) fn sequence(self, text: &str) -> Result<SequenceNumber, StreamError> {
        text.parse().map_err(|_| self.unreadable("sequence number", text))
    }

    /// Parses a shard id. The SDK returns an empty string if the reply has none.
    pub(super) fn shard_id(self, text: String) -> Result<ShardId, StreamError> {
        if text.is_empty() { Err(self.unreadable("shard", "")) } else { Ok(text.into()) }
    }

    /// Checks a consumer. The SDK fills it with empty strings if the reply has none.
    pub(super) fn consumer(
        self,
        consumer: Option<FanOutConsumer>,
    ) -> Result<FanOutConsumer, StreamError> {
        let consumer = consumer.filter(|consumer| !consumer.arn.is_empty());
        consumer.ok_or_else(|| self.unreadable("consumer", "absent"))
    }

    /// Converts records. Moves their data and keys without copying.
    pub(super) fn records(self, records: Vec<types::Record>) -> Result<Vec<Record>, StreamError> {
        let record = |record: types::Record| {
            Ok(Record {
                sequence: self.sequence(&record.sequence_number)?,
                partition_key: PartitionKey::from(record.partition_key.unwrap_or_default()),
                data: record.data.into_bytes(),
                arrival_ms: record.approximate_arrival_timestamp.map_or(0, millis),
            })
        };
        records.into_iter().map(record).collect()
    }

    pub(super) fn children(
        self,
        children: Option<Vec<types::ChildShard>>,
    ) -> Result<Vec<ChildShard>, StreamError> {
        let child = |child: types::ChildShard| {
            Ok(ChildShard {
                range: self.range(child.hash_key_range.as_ref(), &child.shard_id)?,
                id: child.shard_id.into(),
                parents: child.parent_shards.into_iter().map(ShardId::from).collect(),
            })
        };
        children.unwrap_or_default().into_iter().map(child).collect()
    }

    pub(super) fn entry(
        self,
        entry: types::PutRecordsResultEntry,
    ) -> Result<PutEntryResult, StreamError> {
        match (entry.error_code, entry.shard_id, entry.sequence_number) {
            (None, Some(shard), Some(number)) => Ok(PutEntryResult::Placed(Placement {
                shard: self.shard_id(shard)?,
                sequence: self.sequence(&number)?,
            })),
            (Some(code), _, _) => Ok(PutEntryResult::Failed {
                fault: Fault::of(&code, None),
                code,
                message: entry.error_message.unwrap_or_default(),
            }),
            (None, shard, number) => {
                Err(self.unreadable("entry", &format!("{shard:?} {number:?}")))
            }
        }
    }
}

pub(super) fn consumer(consumer: types::Consumer) -> FanOutConsumer {
    FanOutConsumer {
        arn: consumer.consumer_arn,
        name: consumer.consumer_name,
        active: consumer.consumer_status == types::ConsumerStatus::Active,
    }
}

pub(super) fn described(consumer: types::ConsumerDescription) -> FanOutConsumer {
    FanOutConsumer {
        arn: consumer.consumer_arn,
        name: consumer.consumer_name,
        active: consumer.consumer_status == types::ConsumerStatus::Active,
    }
}

fn named(id: Option<String>) -> Option<ShardId> {
    id.filter(|id| !id.is_empty()).map(ShardId::from)
}

/// Returns the nearest millisecond since 1970, or 0 for a time before. JSON sends seconds as a
/// float, which may be slightly off the intended millisecond.
fn millis(moment: DateTime) -> u64 {
    let seconds = u64::try_from(moment.secs()).ok();
    let whole = seconds.and_then(|seconds| seconds.checked_mul(1000));
    whole.map_or(0, |ms| ms + u64::from((moment.subsec_nanos() + 500_000) / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_same_millisecond_in_both_formats() {
        for ms in (1_700_000_000_000..1_700_000_010_000).step_by(7) {
            #[expect(clippy::cast_precision_loss, reason = "exact to far below a millisecond")]
            let in_json = DateTime::from_secs_f64(ms as f64 / 1000.0);
            assert_eq!(millis(in_json), ms);
            assert_eq!(millis(DateTime::from_millis(ms.cast_signed())), ms);
        }
        assert_eq!(millis(DateTime::from_secs(-1)), 0);
    }
}
