//! Kinesis through the AWS SDK: one attempt per call, and a time-out on everything.

mod fault;
mod date;
mod reply;
mod calls;
mod subscribe;

use aws_config::BehaviorVersion;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::timeout::TimeoutConfig;
use aws_sdk_kinesis::config::{ProvideCredentials, StalledStreamProtectionConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_types::SdkConfig;
use std::error::Error;
use std::time::Duration;

/// How long a connection may take to come about.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the first byte of a reply may take after the request was sent.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one call may take in all, its body included: ten megabytes over a slow line.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a subscription may be silent. The service sends an empty event every few seconds.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Kinesis through the AWS SDK. Clones share one client and its connections.
///
/// The SDK's own retries are off: who calls knows what a repeated call would mean.
#[derive(Clone, Debug)]
pub struct AwsKinesis {
    /// The SDK's client.
    client: Client,
}

/// Why the SDK can't be set up from the environment.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing says which region.
    #[error(
        "no AWS region is set: set AWS_REGION, or `region` in the profile that AWS_PROFILE names"
    )]
    NoRegion,
    /// Nothing gives credentials.
    #[error(
        "no AWS credentials were found ({detail}): set AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY, name a profile in AWS_PROFILE, or run where a role is attached; \
         a local stream takes any value"
    )]
    NoCredentials {
        /// What the providers said.
        detail: String,
        /// The error below.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Kinesis with the region, credentials and endpoint of the environment: its variables, the
/// profile, the role of the machine.
pub async fn from_env() -> Result<AwsKinesis, SetupError> {
    Ok(AwsKinesis::new(&config_from_env().await?))
}

/// The configuration that [`from_env`] uses, for other clients of the same application.
pub async fn config_from_env() -> Result<SdkConfig, SetupError> {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await;
    if config.region().is_none() {
        return Err(SetupError::NoRegion);
    }
    let no_credentials = |detail: String, source| SetupError::NoCredentials { detail, source };
    match config.credentials_provider() {
        None => Err(no_credentials("no provider".to_owned(), "no provider".into())),
        Some(provider) => match provider.provide_credentials().await {
            Ok(_) => Ok(config),
            Err(error) => Err(no_credentials(fault::chain(&error), Box::new(error))),
        },
    }
}

impl AwsKinesis {
    /// Kinesis with the endpoint, region, credentials and HTTP client of `config`. Its retries and
    /// time-outs are not used: those are this library's own.
    pub fn new(config: &SdkConfig) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .operation_attempt_timeout(CALL_TIMEOUT)
            .operation_timeout(CALL_TIMEOUT)
            .build();
        let config = aws_sdk_kinesis::config::Builder::from(config)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            // A quiet subscription is not a stalled one, and a stalled call has its time-out.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        Self { client: Client::from_conf(config.build()) }
    }
}
