//! Kinesis through the AWS SDK: one attempt per call, and a time-out on everything.

mod access;
mod fault;
mod fallback;
mod date;
mod reply;
mod calls;
mod subscribe;

pub use access::{AwsAccess, AwsSetupError, config_from_env, from_env};

use super::cbor::wire_format::{WireFormat, WireFormatState};
use super::cbor::{EncodingInterceptor, KinesisProtocol};
use crate::http_client::{CONNECT_TIMEOUT, HttpClient};
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::StalledStreamProtectionConfig;
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use std::sync::Arc;
use std::time::Duration;

/// How long the first byte of a reply may take. A request has a second more for each 128 KiB of its
/// body; puts have no such limit, see [`PUT_TIMEOUT`].
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a put may take, upload included. A caller that wants less drops the call: the
/// producer does so by its `with_request_timeout`.
pub const PUT_TIMEOUT: Duration = Duration::from_mins(15);
/// How long no byte of a reply may come once it has begun. The clock begins anew with each byte.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one call may take in all, its body included: ten megabytes over a slow line. Whoever
/// reads asks for fewer records when that was not enough.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a subscription may be silent. The service sends an empty event every few seconds.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The SDK looks at the last second, so its patience begins a second late.
const STALL_WINDOW: Duration = Duration::from_secs(1);

/// A reply that stops half way is given up long before its time is over.
fn stalls() -> StalledStreamProtectionConfig {
    StalledStreamProtectionConfig::enabled()
        .upload_enabled(false)
        .download_enabled(true)
        .grace_period(STALL_TIMEOUT.saturating_sub(STALL_WINDOW))
        .build()
}

/// Kinesis through the AWS SDK. Clones share one client and its connections.
///
/// The SDK's own retries are off: who calls knows what a repeated call would mean.
#[derive(Clone, Debug)]
pub struct AwsKinesis {
    /// The SDK's client.
    client: Client,
    /// The same with the time-outs of puts.
    puts: Client,
    /// Whether it speaks CBOR or JSON.
    spoken: Arc<WireFormatState>,
}

impl AwsKinesis {
    /// Kinesis with the endpoint, region and credentials of `config`. Its retries and time-outs are
    /// not used: those are this library's own. So is the [`HttpClient`], unless `config` names one:
    /// that one is then used as it is, and what is promised of connections does not hold. Speaks CBOR, with JSON as fallback,
    /// unless the environment asks for JSON: see [`WireFormat::from_env`].
    pub fn new(config: &SdkConfig) -> Self {
        Self::speaking(WireFormat::from_env(), config)
    }

    /// The same, in a format of choice.
    pub fn speaking(format: WireFormat, config: &SdkConfig) -> Self {
        let spoken = Arc::new(WireFormatState::new(format));
        // One attempt is the whole operation, so one clock is enough for both.
        let timeouts = || {
            let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT);
            timeouts.disable_operation_timeout()
        };
        let reads = timeouts().read_timeout(READ_TIMEOUT).operation_attempt_timeout(CALL_TIMEOUT);
        let puts = timeouts().disable_read_timeout().operation_attempt_timeout(PUT_TIMEOUT);
        let mut common = aws_sdk_kinesis::config::Builder::from(config)
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(stalls())
            .protocol(KinesisProtocol::new(Arc::clone(&spoken)))
            .interceptor(EncodingInterceptor);
        if config.http_client().is_none() {
            common = common.http_client(HttpClient::from_env_deferred());
        }
        let client = |timeouts: TimeoutConfig| {
            Client::from_conf(common.clone().timeout_config(timeouts).build())
        };
        Self { client: client(reads.build()), puts: client(puts.build()), spoken }
    }

    /// What is spoken now: JSON once the endpoint has shown that it does not speak CBOR.
    pub fn format(&self) -> WireFormat {
        self.spoken.format()
    }
}
