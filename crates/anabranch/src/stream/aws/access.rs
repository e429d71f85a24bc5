//! Region, credentials and endpoint for AWS, from the environment or from the caller.

use super::{AwsKinesis, fault};
use crate::http_client::{HttpClient, HttpSetupError};
use aws_config::BehaviorVersion;
use aws_sdk_kinesis::config::{Credentials, ProvideCredentials};
use aws_types::SdkConfig;
use aws_types::region::Region;
use std::error::Error;

/// Overrides for the connection to AWS. A field that is `None` is taken from the environment:
/// variables, the profile, or the role of the machine.
#[derive(Clone, Debug, Default)]
pub struct AwsAccess {
    /// Endpoint URL, for all services.
    pub endpoint: Option<String>,
    /// Region name.
    pub region: Option<String>,
    /// Profile in the shared configuration files.
    pub profile: Option<String>,
    /// Credentials for signing.
    pub credentials: Option<Credentials>,
}

/// Reason why the SDK cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AwsSetupError {
    /// No region is set.
    #[error("no AWS region is set: set AWS_REGION, or `region` in the profile of AWS_PROFILE")]
    NoRegion,
    /// No credentials were found.
    #[error(
        "no AWS credentials were found ({detail}): set AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY, set AWS_PROFILE to a profile, or run where a role is attached; a \
         local stream accepts any value"
    )]
    NoCredentials {
        /// Messages of the credentials providers.
        detail: String,
        /// The underlying error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The environment names a proxy or certificate authorities that cannot be used.
    #[error(transparent)]
    Http(#[from] HttpSetupError),
}

/// Returns a Kinesis client with the region, credentials and endpoint of the environment:
/// variables, the profile, or the role of the machine.
pub async fn from_env() -> Result<AwsKinesis, AwsSetupError> {
    Ok(AwsKinesis::new(&config_from_env().await?))
}

/// Returns the configuration that [`from_env`] uses, for other AWS clients of the same application.
pub async fn config_from_env() -> Result<SdkConfig, AwsSetupError> {
    AwsAccess::default().config().await
}

impl AwsAccess {
    /// Loads the configuration for all AWS clients of the application, and checks that it has a
    /// region and credentials.
    pub async fn config(self) -> Result<SdkConfig, AwsSetupError> {
        let loader = aws_config::defaults(BehaviorVersion::latest());
        let mut loader = loader.http_client(HttpClient::from_env()?);
        if let Some(endpoint) = self.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(region) = self.region {
            loader = loader.region(Region::new(region));
        }
        if let Some(profile) = self.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(credentials) = self.credentials {
            loader = loader.credentials_provider(credentials);
        }
        let config = loader.load().await;
        if config.region().is_none() {
            return Err(AwsSetupError::NoRegion);
        }
        let no_credentials =
            |detail: String, source| AwsSetupError::NoCredentials { detail, source };
        match config.credentials_provider() {
            None => Err(no_credentials(
                "no credentials provider".to_owned(),
                "no credentials provider".into(),
            )),
            Some(provider) => match provider.provide_credentials().await {
                Ok(_) => Ok(config),
                Err(error) => Err(no_credentials(fault::chain(&error), Box::new(error))),
            },
        }
    }
}
