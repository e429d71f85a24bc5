//! Starting a producer: what the stream has to be like.

use super::config::ProducerId;
use super::config::{ProducerBuilder, ProducerConfigError};
use super::driver::ProducerDriver;
use super::put::Producer;
use super::queue::InputQueue;
use super::report::{ProducerCounters, Reporter};
use super::requests::{Requester, UploadMeter};
use crate::stream::api::{StreamApi, StreamError, StreamStatus, StreamSummary};
use crate::stream::{IntoStreamApi, KinesisConfigError};
use anabranch_model::ids::StreamName;
use anabranch_model::limits::{RECORD_MAX_BYTES_DEFAULT, RECORD_MAX_KIB_HIGHEST};
use anabranch_model::produce::Machine;
use anabranch_model::produce::settings::{KeyOrder, ProducerSettings};
use anabranch_model::retry::{Backoff, Fault};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The pauses between looks at a stream that is not there yet.
const LOOKS: Backoff = Backoff::new(200, 2_000);

/// Why a producer did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerStartError {
    /// The options are not valid.
    #[error(transparent)]
    Config(#[from] ProducerConfigError),
    /// Kinesis can't be reached as configured.
    #[error(transparent)]
    Kinesis(#[from] KinesisConfigError),
    /// There is no such stream.
    #[error("there is no stream {stream}: create it, or check its name, region and account")]
    Missing {
        /// The stream.
        stream: StreamName,
    },
    /// The stream is being deleted.
    #[error("the stream {stream} is being deleted")]
    Deleting {
        /// The stream.
        stream: StreamName,
    },
    /// The stream did not become usable in time.
    #[error("the stream {stream} is still being created after {waited:?}")]
    StillCreating {
        /// The stream.
        stream: StreamName,
        /// How long the start has waited for it.
        waited: Duration,
    },
    /// The stream spreads records as it likes, so no key can keep its order.
    #[error(
        "the stream {stream} spreads records whatever their keys (AUTO distribution), so keys \
         can't keep their order: set it to USER_PARTITION_KEY, or produce with Order::None"
    )]
    IgnoresKeys {
        /// The stream.
        stream: StreamName,
    },
    /// The stream could not be described.
    #[error("the stream {stream} can't be described: {source}")]
    Describe {
        /// The stream.
        stream: StreamName,
        /// What the last look said.
        source: StreamError,
    },
}

impl<K: IntoStreamApi> ProducerBuilder<K> {
    /// Starts the producer. Call it inside a tokio runtime, which then runs it.
    ///
    /// The stream is looked at first: one that is missing is refused, one that is being created is
    /// waited for. Where looking is not allowed the service's defaults hold.
    pub async fn start(self) -> Result<Producer, ProducerStartError> {
        let settings = self.check()?;
        let (kinesis, builder) = self.replace_kinesis(());
        let api = Arc::new(kinesis.into_stream_api().await?);
        builder.start_on(api, settings).await
    }
}

impl ProducerBuilder<()> {
    async fn start_on<A: StreamApi>(
        self,
        api: Arc<A>,
        settings: ProducerSettings,
    ) -> Result<Producer, ProducerStartError> {
        let summary = self.wait_until_usable(&*api).await?;
        if let Some(summary) = &summary {
            check_order(&self.stream, summary, settings.order)?;
        }
        let from_stream = summary.map(|summary| summary.max_record_bytes);
        let record_max_bytes =
            self.record_max_bytes.or(from_stream).unwrap_or(RECORD_MAX_BYTES_DEFAULT);
        let record_max_bytes = record_max_bytes.min(RECORD_MAX_KIB_HIGHEST * 1024);
        Ok(self.launch(api, ProducerSettings { record_max_bytes, ..settings }))
    }

    /// Looks at the stream until it can be used. `None` where that is not allowed.
    async fn wait_until_usable<A: StreamApi>(
        &self,
        api: &A,
    ) -> Result<Option<StreamSummary>, ProducerStartError> {
        let stream = || self.stream.clone();
        let began_ms = self.clock.now_ms();
        for looks in 1.. {
            let waited_ms = self.clock.now_ms() - began_ms;
            let over = waited_ms >= self.start_timeout_ms;
            match api.describe(&self.stream).await {
                Ok(summary) => match summary.status {
                    StreamStatus::Active | StreamStatus::Updating => return Ok(Some(summary)),
                    StreamStatus::Deleting => {
                        return Err(ProducerStartError::Deleting { stream: stream() });
                    }
                    StreamStatus::Creating if over => {
                        return Err(ProducerStartError::StillCreating {
                            stream: stream(),
                            waited: Duration::from_millis(waited_ms),
                        });
                    }
                    StreamStatus::Creating => {}
                },
                Err(error) if error.fault == Fault::Missing => {
                    return Err(ProducerStartError::Missing { stream: stream() });
                }
                Err(error) if error.fault == Fault::AccessDenied => return Ok(None),
                Err(source) if over || !source.is_retryable() => {
                    return Err(ProducerStartError::Describe { stream: stream(), source });
                }
                Err(_) => {}
            }
            self.clock.sleep(LOOKS.wait_ms(looks, self.chance.bits())).await;
        }
        Ok(None)
    }

    fn launch<A: StreamApi>(self, api: Arc<A>, settings: ProducerSettings) -> Producer {
        let number = self.chance.bits();
        let id = self.id.unwrap_or_else(|| ProducerId::drawn(number));
        let settings = ProducerSettings { dedup_tags: self.marks.then_some(number), ..settings };
        let machine = Machine::new(settings, self.chance.bits(), self.clock.now_ms());
        let intake = Arc::new(InputQueue::new(self.buffer_bytes));
        let counts = Arc::new(ProducerCounters::default());
        let report =
            Reporter::new(self.stream.clone(), id.clone(), self.events, Arc::clone(&counts));
        let caller = Requester {
            api,
            stream: self.stream.clone(),
            clock: self.clock.clone(),
            timeout_ms: self.request_timeout_ms,
            uploading: UploadMeter::default(),
        };
        let driver =
            ProducerDriver::new(machine, caller, Arc::clone(&intake), report, settings.linger_ms);
        let mut task = JoinSet::new();
        task.spawn(driver.run());
        let record_max_bytes = settings.record_max_bytes;
        Producer::of(self.stream, id, intake, record_max_bytes, self.clock, counts, task)
    }
}

/// A stream that ignores keys can't keep their order.
fn check_order(
    stream: &StreamName,
    summary: &StreamSummary,
    order: KeyOrder,
) -> Result<(), ProducerStartError> {
    if summary.ignores_keys && order == KeyOrder::Strict {
        return Err(ProducerStartError::IgnoresKeys { stream: stream.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_order_is_refused_on_a_stream_that_ignores_keys() {
        let check = |ignores_keys, order, refused| {
            let summary = StreamSummary {
                arn: String::new(),
                status: StreamStatus::Active,
                created_ms: 0,
                retention_ms: 86_400_000,
                max_record_bytes: 1,
                on_demand: true,
                ignores_keys,
                open_shards: 1,
            };
            let error = check_order(&"orders".into(), &summary, order).err();
            assert_eq!(error.is_some(), refused, "{ignores_keys} {order:?}: {error:?}");
        };
        check(false, KeyOrder::Strict, false);
        check(false, KeyOrder::None, false);
        check(true, KeyOrder::Strict, true);
        check(true, KeyOrder::None, false);
    }
}
