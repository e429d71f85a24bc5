//! Daemon: a consumer whose shard processors are child processes.

use crate::config::{Config, MetricsSettings, Service};
use crate::credentials::{self, CredentialsUnavailable};
use crate::event_log;
use crate::processor::{ChildProcessorFactory, DaemonContext};
use crate::reaper::Reaper;
use anabranch::clock::Clock;
use anabranch::cloudwatch::{CloudWatch, MetricsLevel};
use anabranch::consumer::{Consumer, Processors, RunError};
use anabranch::http_client::{HttpClient, HttpSetupError};
use anabranch::lease::{AnyStore, DynamoDbStore, StoreError};
use anabranch::stream::aws::AwsKinesis;
use anabranch_model::retry::Backoff;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_types::region::Region;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Longest pause before a child is restarted.
const LONGEST_BACKOFF_MS: u64 = 60_000;
/// Time allowance for killing a child that missed its deadline.
const KILL_MS: u64 = 1_000;
/// Timeout for publishing the last metrics at exit.
const LAST_METRICS_MS: u64 = 5_000;

/// A daemon that is ready to run.
pub struct Daemon {
    config: Config,
    kinesis: AwsKinesis,
    /// Lease store.
    store: AnyStore,
    /// CloudWatch exporter, if metrics are enabled.
    metrics: Option<CloudWatch>,
}

/// Error that prevented a daemon from running or from stopping cleanly.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No source sets a region.
    #[error("no region is set: set regionName in the properties file, or AWS_REGION")]
    NoRegion,
    /// The environment sets an unusable proxy or unusable certificate authorities.
    #[error(transparent)]
    Http(#[from] HttpSetupError),
    /// No provider has credentials.
    #[error(transparent)]
    Credentials(#[from] CredentialsUnavailable),
    /// The lease store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The consumer did not run or did not stop cleanly.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A child failed, and `onChildFailure` is `exit`.
    #[error("a child failed, and onChildFailure is exit: see the log for the child and the reason")]
    ChildFailed,
}

impl Daemon {
    /// Creates the clients, and requests credentials once.
    pub async fn connect(config: Config) -> Result<Self, DaemonError> {
        let base = base(&config).await?;
        if base.region().is_none() {
            return Err(DaemonError::NoRegion);
        }
        let kinesis = service(&base, &config.kinesis, "AwsCredentialsProvider").await?;
        let dynamodb = Box::pin(async {
            let key = "AwsCredentialsProviderDynamoDB";
            Ok::<_, DaemonError>(service(&base, &config.dynamodb, key).await?)
        });
        let store = config.lease_store.open(&config.application, dynamodb).await?;
        let store = store.map_dynamodb(|store| table_settings(store, &config));
        let metrics = match level(&config.metrics) {
            None => None,
            Some(level) => {
                let key = "AwsCredentialsProviderCloudWatch";
                let service = service(&base, &config.cloudwatch, key).await?;
                Some(metrics(&service, &config, level))
            }
        };
        Ok(Self { kinesis: AwsKinesis::new(&kinesis), store, config, metrics })
    }

    /// Runs until `stop` completes. The children are then notified and have the grace period to
    /// checkpoint. Without a grace period they are killed and no lease is released, as Java does.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let Self { config, kinesis, store, metrics } = self;
        let nursery = Arc::new(DaemonContext {
            child: Arc::new(config.child()),
            shutdown_messages: config.shutdown_messages,
            on_failure: config.on_child_failure,
            fatal: CancellationToken::new(),
            reaper: Reaper::open(),
            clock: Clock::machine(),
        });
        let processors = Processors::new(ChildProcessorFactory(Arc::clone(&nursery)))
            .with_most(config.max_records);
        let processors =
            if config.empty_calls { processors.with_empty_calls() } else { processors };
        let consumer = Consumer::new(config.stream.as_str(), config.application.clone())
            .with_kinesis(kinesis)
            .with_leases(store)
            .with_handler(processors)
            .starting_at(config.start)
            .with_events(event_log::log_and_forward(metrics.as_ref().map(CloudWatch::events)))
            .with_settings(|settings| {
                settings.fetch = config.fetch;
                settings.idle_poll_interval = Duration::from_millis(config.idle_poll_ms);
                settings.lease_time = Duration::from_millis(config.lease_time_ms);
                settings.grace_period = Duration::from_millis(config.grace_ms);
                settings.lease_lost_timeout =
                    Duration::from_millis(config.exit_ms.saturating_add(KILL_MS).min(3_600_000));
                settings.worker.clone_from(&config.worker);
                settings.fan_out_name.clone_from(&config.fan_out_name);
                settings.audit_interval = Duration::from_millis(config.audit_ms);
                settings.metrics_interval =
                    Duration::from_millis(config.metrics.every_ms.clamp(1_000, 3_600_000));
                settings.plan.max_leases = config.max_leases.unwrap_or(usize::MAX);
                settings.plan.kcl2.max_steal = config.max_steal;
                settings.plan.kcl2.very_old_first = config.very_old_first;
                settings.retry =
                    Backoff::new(config.backoff_ms, LONGEST_BACKOFF_MS.max(config.backoff_ms));
            });
        let at_once = CancellationToken::new();
        let asked = async {
            stop.await;
            if config.grace_ms == 0 {
                at_once.cancel();
                // The consumer is not stopped: it would notify the children first.
                std::future::pending::<()>().await;
            }
        };
        let published = CancellationToken::new();
        let mut publishing = JoinSet::new();
        if let Some(metrics) = metrics {
            publishing.spawn(metrics.run(published.clone().cancelled_owned()));
        }
        let running = ConsumerWithChildren {
            last: KillAllOnDrop(Some(Arc::clone(&nursery))),
            consumer: Box::pin(consumer.run_until(asked)),
        };
        let ended = tokio::select! {
            biased;
            () = nursery.fatal.cancelled() => return Err(DaemonError::ChildFailed),
            () = at_once.cancelled() => return Ok(()),
            ended = running => ended,
        };
        nursery.reaper.wait_all().await;
        // A failed consumer may still be releasing a child.
        nursery.reaper.kill_all();
        published.cancel();
        tokio::select! {
            biased;
            _ = publishing.join_next() => {}
            () = nursery.clock.sleep(LAST_METRICS_MS) => {}
        }
        Ok(ended?)
    }
}

/// A consumer and its children. If it is dropped before it has ended, the children are killed
/// first, so that they receive no `leaseLost`.
struct ConsumerWithChildren<F> {
    /// Declared first, so that it is dropped before the consumer.
    last: KillAllOnDrop,
    consumer: Pin<Box<F>>,
}

impl<F: Future> Future for ConsumerWithChildren<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let ended = ready!(self.consumer.as_mut().poll(context));
        self.last.0 = None;
        Poll::Ready(ended)
    }
}

/// Kills all children on drop, unless it was disarmed.
struct KillAllOnDrop(Option<Arc<DaemonContext>>);

impl Drop for KillAllOnDrop {
    fn drop(&mut self) {
        if let Some(nursery) = &self.0 {
            nursery.reaper.kill_all();
        }
    }
}

/// Returns the metrics level, or `None` if metrics are disabled.
fn level(metrics: &MetricsSettings) -> Option<MetricsLevel> {
    Some(metrics.level).filter(|level| *level != MetricsLevel::None)
}

fn metrics(service: &SdkConfig, config: &Config, level: MetricsLevel) -> CloudWatch {
    let told = &config.metrics;
    let metrics = CloudWatch::new(service, config.application.clone())
        .with_level(level)
        .with_flush(Duration::from_millis(told.every_ms))
        .with_queue(told.queue);
    let by_worker = ["WorkerIdentifier", "ALL"].iter().any(|name| told.dimensions.contains(*name));
    if by_worker { metrics.with_worker_dimension() } else { metrics }
}

/// Applies the settings for creating the lease table.
fn table_settings(mut store: DynamoDbStore, config: &Config) -> DynamoDbStore {
    if config.deletion_protection {
        store = store.with_deletion_protection();
    }
    if config.point_in_time_recovery {
        store = store.with_point_in_time_recovery();
    }
    store
}

/// Loads the region, the HTTP client and the default credentials chain.
async fn base(config: &Config) -> Result<SdkConfig, HttpSetupError> {
    let loader = aws_config::defaults(BehaviorVersion::latest());
    let mut loader = loader.http_client(HttpClient::from_env()?);
    if let Some(region) = &config.region {
        loader = loader.region(Region::new(region.clone()));
    }
    let base = loader.load().await;
    Ok(match (base.region(), &config.arn_region) {
        (None, Some(region)) => base.into_builder().region(Region::new(region.clone())).build(),
        _ => base,
    })
}

async fn service(
    base: &SdkConfig,
    service: &Service,
    key: &'static str,
) -> Result<SdkConfig, CredentialsUnavailable> {
    let provider = credentials::provider(&service.credentials, base).await;
    credentials::check(key, &provider).await?;
    let mut config = base.to_builder().credentials_provider(provider);
    if let Some(endpoint) = &service.endpoint {
        credentials::set_endpoint(&mut config, endpoint);
    }
    Ok(config.build())
}
