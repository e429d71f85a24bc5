//! Kinesis through the AWS SDK: one attempt per call, and a time-out on everything.

mod access;
mod fault;
mod told;
mod date;
mod reply;
mod calls;
mod subscribe;

pub use access::{Access, SetupError, config_from_env, from_env, http_client};

use super::cbor::spoken::{Spoken, WireFormat};
use super::cbor::{KinesisProtocol, NoteEncoding};
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::StalledStreamProtectionConfig;
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take to come about.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the first byte of a reply may take after the request was sent.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
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
    /// Whether it speaks CBOR or JSON.
    spoken: Arc<Spoken>,
}

impl AwsKinesis {
    /// Kinesis with the endpoint, region, credentials and HTTP client of `config`. Its retries and
    /// time-outs are not used: those are this library's own. Speaks CBOR, with JSON as fallback,
    /// unless the environment asks for JSON: see [`WireFormat::from_env`].
    pub fn new(config: &SdkConfig) -> Self {
        Self::speaking(WireFormat::from_env(), config)
    }

    /// The same, in a format of choice.
    pub fn speaking(format: WireFormat, config: &SdkConfig) -> Self {
        let spoken = Arc::new(Spoken::new(format));
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // One attempt is the whole operation, so one clock is enough for both.
            .operation_attempt_timeout(CALL_TIMEOUT)
            .disable_operation_timeout()
            .build();
        let config = aws_sdk_kinesis::config::Builder::from(config)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .stalled_stream_protection(stalls())
            .protocol(KinesisProtocol::new(Arc::clone(&spoken)))
            .interceptor(NoteEncoding);
        Self { client: Client::from_conf(config.build()), spoken }
    }

    /// What is spoken now: JSON once the endpoint has shown that it does not speak CBOR.
    pub fn format(&self) -> WireFormat {
        self.spoken.format()
    }
}
