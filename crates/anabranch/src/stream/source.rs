//! Ways to name the Kinesis that a consumer, a producer or a tail talks to.

use super::api::StreamApi;
use std::future::{Future, ready};

/// Kinesis with the region, credentials and endpoint of the environment: the variables, profiles
/// and roles that the AWS SDK reads. The default of [`Consumer`](crate::Consumer),
/// [`Producer`](crate::Producer) and [`Tail`](crate::Tail).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FromEnv;

/// The configuration of Kinesis is incomplete or wrong: no region, no credentials, a bad proxy.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct KinesisConfigError(Box<dyn std::error::Error + Send + Sync>);

/// A value that `with_kinesis` accepts: [`FromEnv`], an `SdkConfig` of the AWS SDK, or any
/// [`StreamApi`], such as `AwsKinesis` or `LocalKinesis`.
pub trait IntoStreamApi: Send + 'static {
    /// The API that it becomes.
    type Api: StreamApi;

    /// Makes the API. Called once, when the consumer or producer starts.
    fn into_stream_api(self) -> impl Future<Output = Result<Self::Api, KinesisConfigError>> + Send;
}

impl<A: StreamApi> IntoStreamApi for A {
    type Api = A;

    fn into_stream_api(self) -> impl Future<Output = Result<A, KinesisConfigError>> + Send {
        ready(Ok(self))
    }
}

#[cfg(feature = "aws")]
impl IntoStreamApi for FromEnv {
    type Api = super::AwsKinesis;

    async fn into_stream_api(self) -> Result<super::AwsKinesis, KinesisConfigError> {
        super::aws::from_env().await.map_err(|error| KinesisConfigError(Box::new(error)))
    }
}

#[cfg(feature = "aws")]
impl IntoStreamApi for aws_types::SdkConfig {
    type Api = super::AwsKinesis;

    fn into_stream_api(
        self,
    ) -> impl Future<Output = Result<super::AwsKinesis, KinesisConfigError>> + Send {
        ready(Ok(super::AwsKinesis::new(&self)))
    }
}
