//! `ProducerBuilder`: the settings of a producer with defaults and bounds, which are checked
//! together.

use super::report::{ID_MAX_CHARS, ProducerId};
use crate::clock::{Clock, Rng};
use crate::event::Events;
use crate::stream::{FromEnv, IntoStreamApi};
use crate::time::millis;
use anabranch_model::ids::StreamName;
use anabranch_model::limits::{
    RECORD_MAX_KIB_HIGHEST, SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND,
};
use anabranch_model::produce::settings::{Aggregation, KeyOrder, OnFailure, ProducerSettings};
use anabranch_model::retry::Backoff;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

const RECORD_MAX_BYTES_HIGHEST: usize = RECORD_MAX_KIB_HIGHEST * 1024;
const HOUR_MS: u64 = 3_600_000;

/// Builder of a producer. Created by [`Producer::new`](super::Producer::new).
///
/// [`ProducerBuilder::start`] checks the settings, and reports all values out of bounds at once.
#[derive(Debug, Clone)]
pub struct ProducerBuilder<K = FromEnv> {
    pub(super) kinesis: K,
    pub(super) stream: StreamName,
    pub(super) settings: ProducerSettings,
    pub(super) buffer_bytes: usize,
    pub(super) request_timeout_ms: u64,
    pub(super) start_timeout_ms: u64,
    pub(super) record_max_bytes: Option<usize>,
    pub(super) rate_percent: u64,
    pub(super) id: Option<ProducerId>,
    pub(super) marks: bool,
    backoff_ms: (u64, u64),
    refusal_backoff_ms: (u64, u64),
    pub(super) clock: Clock,
    pub(super) chance: Rng,
    pub(super) events: Events,
}

/// One invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigProblem {
    /// Name of the setting.
    pub option: &'static str,
    /// The problem, and the valid values.
    pub reason: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.reason)
    }
}

/// Invalid settings of a producer: at least one problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("invalid producer settings: {}", list(.0))]
pub struct ProducerConfigError(pub Vec<ConfigProblem>);

fn list(problems: &[ConfigProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl ProducerBuilder {
    pub(super) fn new(stream: StreamName) -> Self {
        Self {
            kinesis: FromEnv,
            stream,
            settings: ProducerSettings::default(),
            buffer_bytes: 32 << 20,
            request_timeout_ms: 10_000,
            start_timeout_ms: 60_000,
            record_max_bytes: None,
            rate_percent: 100,
            id: None,
            marks: false,
            backoff_ms: (50, 5_000),
            refusal_backoff_ms: (1_000, 30_000),
            clock: Clock::machine(),
            chance: Rng::of_system(),
            events: Events::none(),
        }
    }
}

impl<K> ProducerBuilder<K> {
    /// Sends to `kinesis`: an `SdkConfig`, or any [`StreamApi`](crate::StreamApi). Default: the
    /// region, credentials and endpoint of the environment ([`FromEnv`]).
    #[must_use]
    pub fn with_kinesis<L: IntoStreamApi>(self, kinesis: L) -> ProducerBuilder<L> {
        self.replace_kinesis(kinesis).1
    }

    /// Replaces `kinesis`, and also returns the previous value.
    pub(super) fn replace_kinesis<L>(self, kinesis: L) -> (K, ProducerBuilder<L>) {
        let builder = ProducerBuilder {
            kinesis,
            stream: self.stream,
            settings: self.settings,
            buffer_bytes: self.buffer_bytes,
            request_timeout_ms: self.request_timeout_ms,
            start_timeout_ms: self.start_timeout_ms,
            record_max_bytes: self.record_max_bytes,
            rate_percent: self.rate_percent,
            id: self.id,
            marks: self.marks,
            backoff_ms: self.backoff_ms,
            refusal_backoff_ms: self.refusal_backoff_ms,
            clock: self.clock,
            chance: self.chance,
            events: self.events,
        };
        (self.kinesis, builder)
    }

    /// Sets the ordering of the records of a key. Default: [`KeyOrder::Strict`].
    #[must_use]
    pub fn with_order(mut self, order: KeyOrder) -> Self {
        self.settings.order = order;
        self
    }

    /// Sets the grouping of user records into Kinesis records. Default: [`Aggregation::ByShard`].
    ///
    /// KCL and this library deaggregate such records. For readers that do not, use
    /// [`Aggregation::Off`].
    #[must_use]
    pub fn with_aggregation(mut self, aggregation: Aggregation) -> Self {
        self.settings.aggregation = aggregation;
        self
    }

    /// Sets the effect of a failed record on later records of its key, in strict order. Default:
    /// [`OnFailure::StopKey`].
    #[must_use]
    pub fn with_on_failure(mut self, holes: OnFailure) -> Self {
        self.settings.on_failure = holes;
        self
    }

    /// Sends each Kinesis record by its own `PutRecord` call with `SequenceNumberForOrdering`, the
    /// ordering that the service documents. Default: off. Requires [`KeyOrder::Strict`].
    #[must_use]
    pub fn with_ordering_numbers(mut self, on: bool) -> Self {
        self.settings.numbered = on;
        self
    }

    /// Sets the size of the buffer in bytes. Default 32 MiB; 64 KiB to 512 MiB.
    ///
    /// The buffer counts the keys and data of all records without an outcome, plus 256 bytes per
    /// record. [`Producer::put`](super::Producer::put) waits while it is full. Records in flight
    /// take additional memory in their encoded form.
    #[must_use]
    pub fn with_buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Sets the time for which a record waits for others in an idle queue. Default 20 ms; 0 to
    /// 1 min.
    ///
    /// Once a caller awaits an outcome or free space, a quarter of this time without further puts
    /// is enough.
    #[must_use]
    pub fn with_linger(mut self, linger: Duration) -> Self {
        self.settings.linger_ms = millis(linger);
        self
    }

    /// Sets the range of the target size of an aggregate in bytes. Default 50 KiB to 1 MiB; bounds
    /// 64 B to 10 MiB. The stream's record maximum also applies.
    ///
    /// While records wait, an aggregate grows at least to the lower end, further with long round
    /// trips, and never beyond the upper end.
    #[must_use]
    pub fn with_aggregate_bytes(mut self, bytes: RangeInclusive<usize>) -> Self {
        self.settings.aggregate_min_bytes = *bytes.start();
        self.settings.aggregate_max_bytes = *bytes.end();
        self
    }

    /// Sets the maximum time until a record has an outcome. After it, the record is rejected, or
    /// unknown if a reply was lost. Default: no limit; at least 100 ms.
    ///
    /// It also limits the wait of records while the service refuses the caller. They are then
    /// rejected with that refusal as the reason.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline_ms = Some(millis(deadline));
        self
    }

    /// Sets the backoff of a queue between attempts: after the first failure, and at most. Default
    /// 50 ms to 5 s; bounds 1 ms to 1 h.
    #[must_use]
    pub fn with_backoff(mut self, waits: RangeInclusive<Duration>) -> Self {
        self.backoff_ms = (millis(*waits.start()), millis(*waits.end()));
        self
    }

    /// Sets the backoff of a paused shard between probes, while the service refuses the caller
    /// ([`Fault::refuses_caller`]): after the first refusal, and at most. Default 1 s to 30 s;
    /// bounds 1 ms to 1 h.
    ///
    /// [`Fault::refuses_caller`]: anabranch_model::retry::Fault::refuses_caller
    #[must_use]
    pub fn with_refusal_backoff(mut self, waits: RangeInclusive<Duration>) -> Self {
        self.refusal_backoff_ms = (millis(*waits.start()), millis(*waits.end()));
        self
    }

    /// Sets the time after which a call counts as lost, with connect, upload and reply. Default
    /// 10 s; 100 ms to 10 min.
    ///
    /// Large uploads raise the limit. While 64 KiB or more are in flight, a put has at least 5 s,
    /// plus one second for each 128 KiB of all puts in flight. A record of 8 MiB has 69 s. A silent
    /// connection is closed earlier, see [`http_client`](crate::http_client).
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout_ms = millis(timeout);
        self
    }

    /// Sets the maximum number of requests in flight. Default 24; 1 to 256.
    #[must_use]
    pub fn with_max_requests(mut self, requests: usize) -> Self {
        self.settings.max_requests = requests;
        self
    }

    /// Sets the share of a shard's write rate that this producer uses, in percent. Default 100; 1
    /// to 1,000. The producer slows down by itself when a shard throttles it.
    #[must_use]
    pub fn with_rate_percent(mut self, percent: u64) -> Self {
        self.rate_percent = percent;
        self
    }

    /// Sets the id of this producer in events and metrics. Default: 16 random hexadecimal digits
    /// per start; 1 to 128 characters.
    ///
    /// Set it if metrics are kept for long, or if a program starts many producers: each id is a
    /// separate time series.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<ProducerId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Adds a deduplication tag to each aggregate: a number of this producer and a number of the
    /// aggregate. Default: off.
    ///
    /// Consumers of this library then drop the duplicate that a lost reply can leave in the stream.
    /// They deliver the records at the position of the first copy, while the ticket names that of
    /// the last one.
    ///
    /// A tag takes 47 or 48 bytes of each aggregate, in a field that the KPL defines and other
    /// readers skip. The producer's number is random at each start, even if it has an id. Records
    /// that are not aggregated have no tag.
    #[must_use]
    pub fn with_dedup_tags(mut self, on: bool) -> Self {
        self.marks = on;
        self
    }

    /// Sets the maximum time for which a placed Kinesis record waits for the shard list that
    /// verifies it. Without a list it is sent again. Default 5 s; 10 ms to 1 h.
    ///
    /// Only Kinesis records in an unexpected shard, or placed after a period of silence, need
    /// verification.
    #[must_use]
    pub fn with_verify_timeout(mut self, timeout: Duration) -> Self {
        self.settings.verify_timeout_ms = millis(timeout);
        self
    }

    /// Sets the time without evidence of the stream after which its shard map is dropped, because
    /// the stream may have been deleted and recreated. Default 30 s; 1 s to 1 h.
    ///
    /// After an eighth of this time, placements are verified by a new shard list. It should
    /// therefore be far above 16 round trips.
    #[must_use]
    pub fn with_shard_map_idle_timeout(mut self, idle: Duration) -> Self {
        self.settings.map_idle_ms = millis(idle);
        self
    }

    /// Sets the maximum number of stopped keys. One more stops the whole producer, until
    /// [`Producer::resume_all`](super::Producer::resume_all). Default 10,000; 1 to 1,000,000.
    #[must_use]
    pub fn with_max_stopped_keys(mut self, keys: usize) -> Self {
        self.settings.max_stopped_keys = keys;
        self
    }

    /// Sets the maximum size of a record in bytes of key and data. Default: the stream's own
    /// maximum, or 1 MiB if this producer may not describe the stream; 1 B to 10 MiB.
    #[must_use]
    pub fn with_record_max_bytes(mut self, bytes: usize) -> Self {
        self.record_max_bytes = Some(bytes);
        self
    }

    /// Sets the time for which a start waits for a stream that is being created or can't be
    /// reached. Default 60 s; 0 to 1 h.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout_ms = millis(timeout);
        self
    }

    /// Passes events to `events`. Default: events are discarded.
    #[must_use]
    pub fn with_events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// Sets the clock. Default: the machine's.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of random numbers. Default: the system's.
    #[must_use]
    pub fn with_rng(mut self, chance: Rng) -> Self {
        self.chance = chance;
        self
    }

    /// Checks all settings, and returns those of the state machine.
    pub(super) fn check(&self) -> Result<ProducerSettings, ProducerConfigError> {
        let s = &self.settings;
        let mut problems = Vec::new();
        let mut within = |option, value: u64, bounds: RangeInclusive<u64>, unit: &str| {
            if !bounds.contains(&value) {
                let (low, high) = bounds.into_inner();
                let reason = format!("{value} {unit} is not between {low} and {high} {unit}");
                problems.push(ConfigProblem { option, reason });
            }
        };
        let container = 64..=RECORD_MAX_BYTES_HIGHEST as u64;
        within("buffer_bytes", self.buffer_bytes as u64, 64 << 10..=512 << 20, "bytes");
        within("linger", s.linger_ms, 0..=60_000, "ms");
        within("aggregate_bytes (start)", s.aggregate_min_bytes as u64, container.clone(), "bytes");
        within("aggregate_bytes (end)", s.aggregate_max_bytes as u64, container, "bytes");
        within("deadline", s.deadline_ms.unwrap_or(100), 100..=u64::MAX, "ms");
        within("backoff (start)", self.backoff_ms.0, 1..=HOUR_MS, "ms");
        within("backoff (end)", self.backoff_ms.1, 1..=HOUR_MS, "ms");
        within("refusal_backoff (start)", self.refusal_backoff_ms.0, 1..=HOUR_MS, "ms");
        within("refusal_backoff (end)", self.refusal_backoff_ms.1, 1..=HOUR_MS, "ms");
        within("request_timeout", self.request_timeout_ms, 100..=600_000, "ms");
        within("max_requests", s.max_requests as u64, 1..=256, "requests");
        within("rate_percent", self.rate_percent, 1..=1_000, "percent");
        within("verify_timeout", s.verify_timeout_ms, 10..=HOUR_MS, "ms");
        within("shard_map_idle_timeout", s.map_idle_ms, 1_000..=HOUR_MS, "ms");
        within("max_stopped_keys", s.max_stopped_keys as u64, 1..=1_000_000, "keys");
        let record_max = self.record_max_bytes.unwrap_or(1) as u64;
        within("record_max_bytes", record_max, 1..=RECORD_MAX_BYTES_HIGHEST as u64, "bytes");
        within("start_timeout", self.start_timeout_ms, 0..=HOUR_MS, "ms");
        let id_chars = self.id.as_ref().map_or(1, |id| id.as_str().chars().count());
        within("id", id_chars as u64, 1..=ID_MAX_CHARS as u64, "characters");
        let mut wrong = |is_wrong: bool, option, reason: &str| {
            if is_wrong {
                problems.push(ConfigProblem { option, reason: reason.to_owned() });
            }
        };
        wrong(self.stream.as_str().is_empty(), "stream", "the stream name is empty");
        wrong(
            s.aggregate_min_bytes > s.aggregate_max_bytes,
            "aggregate_bytes",
            "the start of the range is above its end",
        );
        wrong(
            self.backoff_ms.0 > self.backoff_ms.1,
            "backoff",
            "the start of the range is above its end",
        );
        wrong(
            self.refusal_backoff_ms.0 > self.refusal_backoff_ms.1,
            "refusal_backoff",
            "the start of the range is above its end",
        );
        wrong(
            s.numbered && s.order == KeyOrder::None,
            "ordering_numbers",
            "ordering numbers require KeyOrder::Strict: turn them off, or set the order to \
             KeyOrder::Strict",
        );
        if !problems.is_empty() {
            return Err(ProducerConfigError(problems));
        }
        Ok(ProducerSettings {
            backoff: Backoff::new(self.backoff_ms.0, self.backoff_ms.1),
            refusal_backoff: Backoff::new(self.refusal_backoff_ms.0, self.refusal_backoff_ms.1),
            shard_records_per_second: percent(
                u64::from(SHARD_WRITE_RECORDS_PER_SECOND),
                self.rate_percent,
            ),
            shard_bytes_per_second: percent(SHARD_WRITE_BYTES_PER_SECOND as u64, self.rate_percent),
            ..*s
        })
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    (of * percent / 100).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(change: impl FnOnce(ProducerBuilder) -> ProducerBuilder) -> Vec<&'static str> {
        match change(ProducerBuilder::new("s".into())).check() {
            Ok(_) => Vec::new(),
            Err(ProducerConfigError(problems)) => {
                problems.iter().map(|problem| problem.option).collect()
            }
        }
    }

    #[test]
    fn all_problems_are_named_at_once() {
        assert_eq!(of(|builder| builder), Vec::<&str>::new());
        let options = of(|builder| {
            builder
                .with_max_requests(0)
                .with_deadline(Duration::ZERO)
                .with_aggregate_bytes(std::ops::RangeInclusive::new(2_000, 1_000))
                .with_ordering_numbers(true)
                .with_order(KeyOrder::None)
        });
        assert_eq!(options, ["deadline", "max_requests", "aggregate_bytes", "ordering_numbers"]);
    }

    #[test]
    fn a_rate_is_a_share_of_what_a_shard_takes() {
        for (percent, records, bytes) in
            [(1, 10, 10_485), (100, 1_000, 1 << 20), (150, 1_500, 3 << 19)]
        {
            let settings =
                ProducerBuilder::new("s".into()).with_rate_percent(percent).check().unwrap();
            let rates = (settings.shard_records_per_second, settings.shard_bytes_per_second);
            assert_eq!(rates, (records, bytes), "{percent} %");
        }
    }

    #[test]
    fn a_message_names_the_option_the_value_and_the_bounds() {
        let error = ProducerBuilder::new("s".into()).with_max_requests(999).check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid producer settings: max_requests: 999 requests is not between 1 and 256 requests"
        );
    }
}
