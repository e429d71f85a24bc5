//! What can be set on a producer, with default and bound, checked together.

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
use std::sync::Arc;
use std::time::Duration;

const RECORD_MAX_BYTES_HIGHEST: usize = RECORD_MAX_KIB_HIGHEST * 1024;
const HOUR_MS: u64 = 3_600_000;

/// What a producer is to be. See [`super::Producer::new`].
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

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The option.
    pub option: &'static str,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.reason)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the producer's options are not valid: {}", list(.0))]
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
    /// Sends to this Kinesis: an `SdkConfig`, or any [`StreamApi`](crate::StreamApi). Default: the
    /// region, credentials and endpoint of the environment ([`FromEnv`]).
    #[must_use]
    pub fn with_kinesis<L: IntoStreamApi>(self, kinesis: L) -> ProducerBuilder<L> {
        self.replace_kinesis(kinesis).1
    }

    /// Swaps the way to Kinesis, and returns the previous one too.
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

    /// Whether keys keep their order. Default: [`KeyOrder::Strict`].
    #[must_use]
    pub fn with_order(mut self, order: KeyOrder) -> Self {
        self.settings.order = order;
        self
    }

    /// What goes into one record of the stream. Default: [`Aggregation::ByShard`].
    ///
    /// Readers other than KCL and this library take aggregates apart only if they know how; for
    /// those that don't, use [`Aggregation::Off`].
    #[must_use]
    pub fn with_aggregation(mut self, aggregation: Aggregation) -> Self {
        self.settings.aggregation = aggregation;
        self
    }

    /// What a hole does to its key, in strict order. Default: [`OnFailure::StopKey`].
    #[must_use]
    pub fn with_on_failure(mut self, holes: OnFailure) -> Self {
        self.settings.on_failure = holes;
        self
    }

    /// Puts each container by `PutRecord` with `SequenceNumberForOrdering`, the order that the
    /// service documents, at one container a call. Default: off.
    #[must_use]
    pub fn with_ordering_numbers(mut self, on: bool) -> Self {
        self.settings.numbered = on;
        self
    }

    /// Bytes of records without an outcome, with 256 for each record; `put` waits while they are
    /// reached. What is on its way is held once more, as it is sent. Default 32 MiB; 64 KiB to
    /// 512 MiB.
    #[must_use]
    pub fn with_buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// How long a record waits for others at an idle lane. A quarter of it is enough if nothing more
    /// is put and someone waits, for an outcome or for room. Default 20 ms; up to a minute.
    #[must_use]
    pub fn with_linger(mut self, linger: Duration) -> Self {
        self.settings.linger_ms = millis(linger);
        self
    }

    /// The bytes that a container grows to while records wait: at least the first, more when round
    /// trips are long, and never above the second. Default 50 KiB to 1 MiB; 64 B to 10 MiB. The
    /// stream's record maximum holds too.
    #[must_use]
    pub fn with_aggregate_bytes(mut self, bytes: RangeInclusive<usize>) -> Self {
        self.settings.aggregate_min_bytes = *bytes.start();
        self.settings.aggregate_max_bytes = *bytes.end();
        self
    }

    /// After how long a record without an outcome is given up: as rejected, or as unknown if a
    /// reply was lost. Default: never; 100 ms or more.
    ///
    /// It also bounds how long records wait while the service refuses the caller; they are then
    /// rejected with that refusal as the reason.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline_ms = Some(millis(deadline));
        self
    }

    /// Waits of a lane between attempts: after the first failure, and at the most. Default 50 ms to
    /// 5 s; 1 ms to an hour.
    #[must_use]
    pub fn with_backoff(mut self, waits: RangeInclusive<Duration>) -> Self {
        self.backoff_ms = (millis(*waits.start()), millis(*waits.end()));
        self
    }

    /// Waits of a paused shard between probes, while the service refuses the caller
    /// ([`Fault::refuses_caller`]): after the first refusal, and at the most. Default 1 s to 30 s;
    /// 1 ms to an hour.
    ///
    /// [`Fault::refuses_caller`]: anabranch_model::retry::Fault::refuses_caller
    #[must_use]
    pub fn with_refusal_backoff(mut self, waits: RangeInclusive<Duration>) -> Self {
        self.refusal_backoff_ms = (millis(*waits.start()), millis(*waits.end()));
        self
    }

    /// After how long a call counts as lost: connecting, upload and reply together. Default 10 s;
    /// 100 ms to 10 minutes.
    ///
    /// A time that is too short for what is being sent is raised: while 64 KiB or more are under
    /// way, a put has at least 5 s, and a second more for each 128 KiB of all puts under way. A
    /// record of 8 MiB has 69 s. A connection that went silent is left earlier, see
    /// [`http_client`](crate::http_client).
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout_ms = millis(timeout);
        self
    }

    /// Requests on their way at a time. Default 24; 1 to 256.
    #[must_use]
    pub fn with_max_requests(mut self, requests: usize) -> Self {
        self.settings.max_requests = requests;
        self
    }

    /// The share of a shard's write rate that this producer uses, in percent. Default 100; 1 to
    /// 1,000. It gives way by itself when a shard refuses.
    #[must_use]
    pub fn with_rate_percent(mut self, percent: u64) -> Self {
        self.rate_percent = percent;
        self
    }

    /// What events and metrics call this producer, beside its stream. Default: 16 characters, drawn
    /// anew at each start; 1 to 128 characters. Give one where metrics are kept for long, or where a
    /// program starts many producers: each id is a time series of its own.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<ProducerId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Whether aggregates are marked with a number of this producer and one of their own, so that
    /// consumers of this library drop the second copy that a lost reply may leave: its records are
    /// then delivered where the first copy is, and the ticket names the last one. Default: no.
    ///
    /// A mark takes 47 bytes of each aggregate, or 48, in a field that the KPL defines and other
    /// readers skip. The producer's number is drawn anew at each start, also if it has an id.
    /// Records that travel alone have no mark.
    #[must_use]
    pub fn with_dedup_tags(mut self, on: bool) -> Self {
        self.marks = on;
        self
    }

    /// How long a container that is in an unexpected shard, or was placed after a silence, waits for
    /// the list of shards. Without one it is sent again. Default 5 s; 10 ms to an hour.
    #[must_use]
    pub fn with_verify_timeout(mut self, timeout: Duration) -> Self {
        self.settings.verify_timeout_ms = millis(timeout);
        self
    }

    /// After how long without a sign of the stream the map of its shards is dropped: it may have
    /// been deleted and made anew. After an eighth of that, what is placed is judged by a new list,
    /// so it should be far above 16 round trips. Default 30 s; 1 s to an hour.
    #[must_use]
    pub fn with_shard_map_idle_timeout(mut self, idle: Duration) -> Self {
        self.settings.map_idle_ms = millis(idle);
        self
    }

    /// Keys that may stand stopped before the whole producer stops, until
    /// [`super::Producer::resume_all`]. Default 10,000; 1 to 1,000,000.
    #[must_use]
    pub fn with_max_stopped_keys(mut self, keys: usize) -> Self {
        self.settings.max_stopped_keys = keys;
        self
    }

    /// The largest record in bytes of key and data, for a stream that this producer may not describe.
    /// Default: what the stream says, else 1 MiB; 1 B to 10 MiB.
    #[must_use]
    pub fn with_record_max_bytes(mut self, bytes: usize) -> Self {
        self.record_max_bytes = Some(bytes);
        self
    }

    /// How long starting waits for a stream that is being created, or can't be reached. Default
    /// 60 s; up to an hour.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout_ms = millis(timeout);
        self
    }

    /// Who hears of events. Default: nobody.
    #[must_use]
    pub fn with_events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// The time. Default: the machine's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The random numbers. Default: the system's.
    #[must_use]
    pub fn with_rng(mut self, chance: Rng) -> Self {
        self.chance = chance;
        self
    }

    /// Checks everything, and gives what the machine is told.
    pub(super) fn check(&self) -> Result<ProducerSettings, ProducerConfigError> {
        let s = &self.settings;
        let mut problems = Vec::new();
        let mut within = |option, value: u64, bounds: RangeInclusive<u64>, unit: &str| {
            if !bounds.contains(&value) {
                let (low, high) = bounds.into_inner();
                let reason = format!("{value} {unit} is not within {low} and {high} {unit}");
                problems.push(ConfigProblem { option, reason });
            }
        };
        let container = 64..=RECORD_MAX_BYTES_HIGHEST as u64;
        within("buffer_bytes", self.buffer_bytes as u64, 64 << 10..=512 << 20, "bytes");
        within("linger", s.linger_ms, 0..=60_000, "ms");
        within("container_bytes (first)", s.aggregate_min_bytes as u64, container.clone(), "bytes");
        within("container_bytes (most)", s.aggregate_max_bytes as u64, container, "bytes");
        within("deadline", s.deadline_ms.unwrap_or(100), 100..=u64::MAX, "ms");
        within("backoff (first)", self.backoff_ms.0, 1..=HOUR_MS, "ms");
        within("backoff (most)", self.backoff_ms.1, 1..=HOUR_MS, "ms");
        within("refusal_backoff (first)", self.refusal_backoff_ms.0, 1..=HOUR_MS, "ms");
        within("refusal_backoff (most)", self.refusal_backoff_ms.1, 1..=HOUR_MS, "ms");
        within("request_timeout", self.request_timeout_ms, 100..=600_000, "ms");
        within("max_requests", s.max_requests as u64, 1..=256, "requests");
        within("rate_percent", self.rate_percent, 1..=1_000, "percent");
        within("judge_timeout", s.verify_timeout_ms, 10..=HOUR_MS, "ms");
        within("map_idle", s.map_idle_ms, 1_000..=HOUR_MS, "ms");
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
        wrong(self.stream.as_str().is_empty(), "stream", "the name is empty");
        wrong(
            s.aggregate_min_bytes > s.aggregate_max_bytes,
            "container_bytes",
            "the first bound is above the second",
        );
        wrong(
            self.backoff_ms.0 > self.backoff_ms.1,
            "backoff",
            "the first wait is above the longest",
        );
        wrong(
            self.refusal_backoff_ms.0 > self.refusal_backoff_ms.1,
            "refusal_backoff",
            "the first wait is above the longest",
        );
        wrong(
            s.numbered && s.order == KeyOrder::None,
            "ordering_numbers",
            "numbers need strict order: leave one of the two out",
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

// The id of a producer: by it events and metrics tell producers of one stream apart.

/// The most characters that an id may have.
pub(super) const ID_MAX_CHARS: usize = 128;

/// Which producer it is. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(Arc<str>);

impl ProducerId {
    /// The id of a producer that was given none.
    pub(super) fn drawn(number: u64) -> Self {
        format!("{number:016x}").into()
    }

    /// The id as it was given, or drawn.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ProducerId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for ProducerId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
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
        assert_eq!(options, ["deadline", "max_requests", "container_bytes", "ordering_numbers"]);
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
            "the producer's options are not valid: \
             max_requests: 999 requests is not within 1 and 256 requests"
        );
    }
}
