//! SDK credentials providers for those named in the properties.

use super::names::{Provider, Role};
use aws_config::SdkConfig;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_types::origin::Origin;
use aws_types::region::Region;
use std::error::Error;

/// Error if no provider has credentials.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key} yields no credentials ({detail}): set the variables, name a profile, or run where a \
     role is attached"
)]
pub struct CredentialsUnavailable {
    /// Key of the properties file.
    pub key: &'static str,
    /// Errors of the providers.
    pub detail: String,
}

/// Returns a chain of `providers`, of which the first with credentials is used. `base` supplies the
/// region, the HTTP client and the default chain.
pub async fn provider(providers: &[Provider], base: &SdkConfig) -> SharedCredentialsProvider {
    let mut chain: Option<CredentialsProviderChain> = None;
    for named in providers {
        let (name, next) = (named.to_string(), one(named, base).await);
        chain = Some(match chain {
            None => CredentialsProviderChain::first_try(name, next),
            Some(chain) => chain.or_else(name, next),
        });
    }
    match chain {
        Some(chain) => SharedCredentialsProvider::new(chain),
        None => default_chain(base),
    }
}

/// Requests credentials once, so that a daemon without credentials fails at startup.
pub async fn check(
    key: &'static str,
    provider: &SharedCredentialsProvider,
) -> Result<(), CredentialsUnavailable> {
    match provider.provide_credentials().await {
        Ok(_) => Ok(()),
        Err(error) => {
            let mut detail = error.to_string();
            let mut below = error.source();
            while let Some(source) = below {
                detail = format!("{detail}: {source}");
                below = source.source();
            }
            Err(CredentialsUnavailable { key, detail })
        }
    }
}

fn default_chain(base: &SdkConfig) -> SharedCredentialsProvider {
    let none = || SharedCredentialsProvider::new(EnvironmentVariableCredentialsProvider::new());
    base.credentials_provider().unwrap_or_else(none)
}

async fn one(named: &Provider, base: &SdkConfig) -> SharedCredentialsProvider {
    let conf = provider_config(base);
    match named {
        Provider::Default => default_chain(base),
        Provider::Environment => {
            SharedCredentialsProvider::new(EnvironmentVariableCredentialsProvider::new())
        }
        Provider::Profile(name) => {
            let builder = ProfileFileCredentialsProvider::builder().configure(&conf);
            let builder = match name {
                Some(name) => builder.profile_name(name),
                None => builder,
            };
            SharedCredentialsProvider::new(builder.build())
        }
        Provider::WebIdentity => SharedCredentialsProvider::new(
            WebIdentityTokenCredentialsProvider::builder().configure(&conf).build(),
        ),
        Provider::Container => SharedCredentialsProvider::new(
            EcsCredentialsProvider::builder().configure(&conf).build(),
        ),
        Provider::Instance => SharedCredentialsProvider::new(
            ImdsCredentialsProvider::builder().configure(&conf).build(),
        ),
        Provider::AssumeRole(role) => SharedCredentialsProvider::new(assume(role, base).await),
        Provider::Static { key, secret, token } => SharedCredentialsProvider::new(
            Credentials::new(key, secret, token.clone(), None, "properties file"),
        ),
    }
}

async fn assume(role: &Role, base: &SdkConfig) -> AssumeRoleProvider {
    let mut sts = base.to_builder();
    if let Some(endpoint) = &role.endpoint {
        set_endpoint(&mut sts, endpoint);
    }
    let mut builder =
        AssumeRoleProvider::builder(&role.arn).session_name(&role.session).configure(&sts.build());
    if let Some(id) = &role.external_id {
        builder = builder.external_id(id);
    }
    if let Some(region) = &role.region {
        builder = builder.region(Region::new(region.clone()));
    }
    builder.build_from_provider(default_chain(base)).await
}

/// Sets an endpoint from the properties, which takes precedence over variables and profiles.
pub fn set_endpoint(config: &mut aws_types::sdk_config::Builder, endpoint: &str) {
    config.set_endpoint_url(Some(endpoint.to_owned()));
    config.insert_origin("endpoint_url", Origin::shared_config());
}

fn provider_config(base: &SdkConfig) -> ProviderConfig {
    let conf = ProviderConfig::without_region().with_region(base.region().cloned());
    match base.http_client() {
        Some(http) => conf.with_http_client(http),
        None => conf,
    }
}
