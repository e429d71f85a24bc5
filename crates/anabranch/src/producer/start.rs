//! The start of a producer: checks of the stream, and the reasons for refusing it.

use super::config::{ProducerBuilder, ProducerConfigError};
use super::driver::ProducerDriver;
use super::put::Producer;
use super::queue::InputQueue;
use super::report::ProducerId;
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

/// Backoff between descriptions of a stream that is not usable yet.
const LOOKS: Backoff = Backoff::new(200, 2_000);

/// Error of starting a producer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerStartError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ProducerConfigError),
    /// The configuration of Kinesis is incomplete or wrong.
    #[error(transparent)]
    Kinesis(#[from] KinesisConfigError),
    /// The stream does not exist.
    #[error("stream {stream} does not exist: create it, or check its name, region and account")]
    Missing {
        /// Name of the stream.
        stream: StreamName,
    },
    /// The stream is being deleted.
    #[error("stream {stream} is being deleted: wait until it is gone, then create it again")]
    Deleting {
        /// Name of the stream.
        stream: StreamName,
    },
    /// The stream did not become usable within the start timeout.
    #[error(
        "stream {stream} is still being created after {waited:?}: try again later, or set a longer \
         `start_timeout`"
    )]
    StillCreating {
        /// Name of the stream.
        stream: StreamName,
        /// Time waited.
        waited: Duration,
    },
    /// The stream distributes records independently of their keys, so no key can keep its order.
    #[error(
        "stream {stream} distributes records regardless of their keys (AUTO distribution), so the \
         order of a key cannot be kept: set the stream to USER_PARTITION_KEY, or use KeyOrder::None"
    )]
    IgnoresKeys {
        /// Name of the stream.
        stream: StreamName,
    },
    /// The stream could not be described.
    #[error("cannot describe stream {stream}: {source}")]
    Describe {
        /// Name of the stream.
        stream: StreamName,
        /// Error of the last attempt.
        source: StreamError,
    },
}

impl<K: IntoStreamApi> ProducerBuilder<K> {
    /// Starts the producer. Call it inside a Tokio runtime, which then runs the producer.
    ///
    /// Describes the stream first. A missing stream is an error; a stream that is being created is
    /// waited for. If this producer may not describe the stream, the service's defaults apply.
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

    /// Describes the stream until it is usable. Returns `None` if describing it is not permitted.
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

/// Refuses strict order on a stream that ignores keys.
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
