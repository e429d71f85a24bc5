//! Publishes metrics to CloudWatch under KCL's names and dimensions, so that the alarms of a team
//! that migrates keep working.
//!
//! ```text
//! Event ─► kcl: KCL's metrics and levels ─► buffer: statistics by name and dimensions, bounded
//!                                              └─► CloudWatch::run: PutMetricData, in batches
//! ```
//!
//! `docs/metrics.md` lists the supported KCL metrics.

mod kcl;
mod buffer;

use crate::clock::Clock;
use crate::event::{Event, Events};
use crate::http_client::HttpClient;
use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::config::timeout::TimeoutConfig;
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{Dimension, MetricDatum, StandardUnit, StatisticSet};
use aws_types::SdkConfig;
use buffer::{MetricBuffer, MetricSeries, Statistics};
use kcl::KclMetrics;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of metrics in one call, as in KCL.
const BATCH: usize = 200;
/// Default pause between two publications, as in KCL.
const FLUSH_MS: u64 = 10_000;
/// Default maximum number of waiting series, as in KCL.
const QUEUE: usize = 10_000;
/// Time-out of one call, retries included.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Amount of metrics published: KCL's `metricsLevel`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MetricsLevel {
    /// No metrics.
    None,
    /// The metrics that most alarms use.
    Summary,
    /// All metrics. KCL's default.
    Detailed,
}

/// Publishes metrics to CloudWatch as KCL does. Pass [`CloudWatch::events`] to the consumer, and
/// run [`CloudWatch::run`] next to it.
///
/// ```no_run
/// # async fn run(consumer: anabranch::consumer::Consumer) -> Result<(), Box<dyn std::error::Error>> {
/// use anabranch::cloudwatch::{CloudWatch, MetricsLevel};
///
/// let config = anabranch::stream::aws::config_from_env().await?;
/// let metrics = CloudWatch::new(&config, "mailer").with_level(MetricsLevel::Summary);
/// let consumer = consumer.with_events(metrics.events());
/// let publishing = metrics.run(std::future::pending());
/// # let _ = (consumer, publishing); Ok(()) }
/// ```
pub struct CloudWatch {
    client: Client,
    /// CloudWatch namespace: the application's name.
    namespace: String,
    /// Pause between two publications, in milliseconds.
    flush_ms: u64,
    clock: Clock,
    /// Metrics that are not published yet.
    inside: Arc<Mutex<CloudWatchState>>,
}

struct CloudWatchState {
    /// Converts events to KCL's metrics.
    scribe: KclMetrics,
    /// Series that wait to be published.
    tally: MetricBuffer,
}

/// Result of all publications.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PublishStats {
    /// Calls that succeeded.
    pub calls: u64,
    /// Series published by those calls.
    pub series: u64,
    /// Calls that failed. Their series are published with the next calls.
    pub failures: u64,
    /// Values that were dropped because the buffer was full.
    pub dropped: u64,
}

impl CloudWatch {
    /// Creates a publisher for the namespace `application`, with the endpoint, region and
    /// credentials of `config`.
    pub fn new(config: &SdkConfig, application: impl Into<String>) -> Self {
        let timeouts = TimeoutConfig::builder().operation_timeout(CALL_TIMEOUT).build();
        let mut builder =
            aws_sdk_cloudwatch::config::Builder::from(config).timeout_config(timeouts);
        if config.http_client().is_none() {
            builder = builder.http_client(HttpClient::from_env_deferred());
        }
        let inside =
            CloudWatchState { scribe: KclMetrics::default(), tally: MetricBuffer::new(QUEUE) };
        Self {
            client: Client::from_conf(builder.build()),
            namespace: application.into(),
            flush_ms: FLUSH_MS,
            clock: Clock::machine(),
            inside: Arc::new(Mutex::new(inside)),
        }
    }

    /// Sets the metrics level. Default: [`MetricsLevel::Detailed`], as in KCL.
    #[must_use]
    pub fn with_level(self, level: MetricsLevel) -> Self {
        self.lock().scribe.level = level;
        self
    }

    /// Adds the dimension `WorkerIdentifier` to the metrics that have it in KCL. Default: off, as
    /// in KCL.
    #[must_use]
    pub fn with_worker_dimension(self) -> Self {
        self.lock().scribe.worker_dimension = true;
        self
    }

    /// Adds the dimension `StreamId`, the stream's name, to the metrics of shards. Use it in an
    /// application that reads several streams. Default: off.
    #[must_use]
    pub fn with_stream_dimension(self) -> Self {
        self.lock().scribe.stream_dimension = true;
        self
    }

    /// Sets the pause between two publications: KCL's `metricsBufferTimeMillis`. Default: 10 s;
    /// minimum: 1 s.
    #[must_use]
    pub fn with_flush(mut self, pause: Duration) -> Self {
        self.flush_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1_000);
        self
    }

    /// Sets the maximum number of waiting series: KCL's `metricsMaxQueueSize`. Default: 10,000;
    /// minimum: 1. Values beyond it are dropped and counted.
    #[must_use]
    pub fn with_queue(self, series: usize) -> Self {
        self.lock().tally = MetricBuffer::new(series.max(1));
        self
    }

    /// Sets the clock, for tests and simulations.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the listener that collects the metrics.
    pub fn events(&self) -> Events {
        let inside = Arc::clone(&self.inside);
        Events::new(move |event: &Event| {
            let mut inside = lock(&inside);
            let CloudWatchState { scribe, tally } = &mut *inside;
            scribe.on_event(event, |series, value| tally.add(series, value));
        })
    }

    /// Publishes periodically until `stop` completes, and then once more.
    pub async fn run(self, stop: impl Future<Output = ()>) -> PublishStats {
        let mut stop = pin!(stop);
        let mut published = PublishStats::default();
        loop {
            let stopped = tokio::select! {
                biased;
                () = &mut stop => true,
                () = self.clock.sleep(self.flush_ms) => false,
            };
            self.flush(&mut published).await;
            if stopped {
                published.dropped = self.lock().tally.dropped();
                return published;
            }
        }
    }

    async fn flush(&self, published: &mut PublishStats) {
        let waiting = {
            let mut inside = self.lock();
            let CloudWatchState { scribe, tally } = &mut *inside;
            scribe.before_flush(|series, value| tally.add(series, value));
            tally.take()
        };
        let at = DateTime::from_millis(i64::try_from(self.clock.wall_ms()).unwrap_or(i64::MAX));
        for batch in waiting.chunks(BATCH) {
            let data = batch.iter().map(|(series, statistics)| datum(series, statistics, at));
            let put = self.client.put_metric_data().namespace(&self.namespace);
            match put.set_metric_data(Some(data.collect())).send().await {
                Ok(_) => {
                    published.calls += 1;
                    published.series += batch.len() as u64;
                }
                Err(error) => {
                    published.failures += 1;
                    let error = aws_sdk_cloudwatch::error::DisplayErrorContext(&error);
                    tracing::warn!(namespace = self.namespace, %error, "metrics were not published");
                    let mut inside = self.lock();
                    for (series, statistics) in batch {
                        inside.tally.merge(series.clone(), *statistics);
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, CloudWatchState> {
        lock(&self.inside)
    }
}

fn lock(inside: &Mutex<CloudWatchState>) -> MutexGuard<'_, CloudWatchState> {
    // A panic in a listener may leave counts incomplete, but they remain usable.
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

fn datum(series: &MetricSeries, statistics: &Statistics, at: DateTime) -> MetricDatum {
    let dimensions = series
        .dimensions
        .iter()
        .map(|(name, value)| Dimension::builder().name(*name).value(value.as_ref()).build());
    let set = StatisticSet::builder()
        .sample_count(statistics.count)
        .sum(statistics.sum)
        .minimum(statistics.least)
        .maximum(statistics.most)
        .build();
    MetricDatum::builder()
        .metric_name(series.name)
        .set_dimensions(Some(dimensions.collect()))
        .timestamp(at)
        .unit(match series.unit {
            buffer::MetricUnit::Count => StandardUnit::Count,
            buffer::MetricUnit::Milliseconds => StandardUnit::Milliseconds,
            buffer::MetricUnit::Bytes => StandardUnit::Bytes,
        })
        .statistic_values(set)
        .build()
}

impl fmt::Debug for CloudWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudWatch").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
