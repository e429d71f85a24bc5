//! Kinesis through the AWS SDK: one attempt per call, always with a time-out.

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

/// Maximum time until the first byte of a reply, plus one second for each 128 KiB of the request
/// body. Puts have no such limit, see [`PUT_TIMEOUT`].
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of a put, including the upload. A caller with a shorter limit drops the call, as
/// the producer does after its `with_request_timeout`.
pub const PUT_TIMEOUT: Duration = Duration::from_mins(15);
/// Maximum time without a byte of a reply that has begun. Restarts with each byte.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of one call other than a put, including the reply: enough for 10 MB over a slow
/// link. After a read that was too slow, the reader requests fewer records.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum silence of a subscription. The service sends an empty event every few seconds.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Window over which the SDK measures throughput. Its grace period begins one window late.
const STALL_WINDOW: Duration = Duration::from_secs(1);

/// Returns the SDK setting that aborts a stalled reply after [`STALL_TIMEOUT`].
fn stalls() -> StalledStreamProtectionConfig {
    StalledStreamProtectionConfig::enabled()
        .upload_enabled(false)
        .download_enabled(true)
        .grace_period(STALL_TIMEOUT.saturating_sub(STALL_WINDOW))
        .build()
}

/// Kinesis through the AWS SDK. Clones share one client and its connections.
///
/// The SDK's retries are off, because only the callers know the effect of a repeated call.
#[derive(Clone, Debug)]
pub struct AwsKinesis {
    client: Client,
    /// The same client with the time-outs for puts.
    puts: Client,
    /// CBOR or JSON, as detected so far.
    spoken: Arc<WireFormatState>,
}

impl AwsKinesis {
    /// Creates a client with the endpoint, region and credentials of `config`.
    ///
    /// The retries and time-outs of `config` are ignored: the library has its own. If `config` has
    /// no HTTP client, the library's [`HttpClient`] is used. Otherwise that of `config` is used as
    /// it is, without the library's guarantees on connections.
    ///
    /// Uses CBOR with JSON as fallback, unless the environment requests JSON, see
    /// [`WireFormat::from_env`].
    pub fn new(config: &SdkConfig) -> Self {
        Self::speaking(WireFormat::from_env(), config)
    }

    /// Creates a client as [`AwsKinesis::new`] does, with this wire format.
    pub fn speaking(format: WireFormat, config: &SdkConfig) -> Self {
        let spoken = Arc::new(WireFormatState::new(format));
        // An operation is a single attempt, so the time-out of the attempt is enough.
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

    /// Returns the current wire format: JSON once the endpoint has shown that it does not support
    /// CBOR.
    pub fn format(&self) -> WireFormat {
        self.spoken.format()
    }
}
