//! AWS clients of the commands.

use super::{ConnectionSettings, explain, slow_service};
use crate::failure::CommandFailure;
use anabranch::TailError;
use anabranch::lease::{AnyStore, LeaseStore, stream_names};
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{ReadFrom, ShardFilter, StreamApi, StreamError, StreamSummary};
use anabranch::stream::aws::{AwsAccess, AwsSetupError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::Layout;
use anabranch_model::retry::Fault;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_sdk_kinesis::config::Credentials;
use aws_types::SdkConfig;
use std::time::Duration;

/// Maximum attempts of a retryable call.
const ATTEMPTS: u32 = 3;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// Default region for a local stream.
const LOCAL_REGION: &str = "us-east-1";

/// The Kinesis client, and the configuration for other AWS clients.
#[derive(Clone, Debug)]
pub(crate) struct AwsClients {
    /// Shared configuration of all clients.
    pub(crate) config: SdkConfig,
    pub(crate) kinesis: AwsKinesis,
}

impl ConnectionSettings {
    /// Creates the clients for AWS or for the configured endpoint. Makes no call yet.
    pub(crate) async fn aws(&self) -> Result<AwsClients, CommandFailure> {
        let mut access = AwsAccess {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            profile: self.profile.clone(),
            credentials: None,
        };
        if self.is_local() {
            if self.profile.is_none() && !env_has_credentials() {
                // A local stream checks no signature.
                access.credentials = Some(Credentials::new("local", "local", None, None, "local"));
            }
            if access.region.is_none() {
                access.region = Some(self.region_here().await);
            }
        }
        let what = "the region and the credentials of the environment";
        let config = Box::pin(slow_service::notify_if_slow(what, access.config())).await;
        let config = slow_service::with_notice(config.map_err(|error| setup_failure(&error))?);
        Ok(AwsClients { kinesis: AwsKinesis::new(&config), config })
    }

    /// Returns the region for a local endpoint: that of the environment or the profile, or else the
    /// default. Other sources are not queried, because most local endpoints ignore the region.
    async fn region_here(&self) -> String {
        let mut profile = ProfileFileRegionProvider::builder();
        if let Some(name) = &self.profile {
            profile = profile.profile_name(name);
        }
        let told = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new());
        let told = told.or_else(profile.build()).region().await;
        told.map_or_else(|| LOCAL_REGION.to_owned(), |region| region.to_string())
    }

    /// Returns true if the endpoint is on this machine.
    fn is_local(&self) -> bool {
        let variables = ["AWS_ENDPOINT_URL_KINESIS", "AWS_ENDPOINT_URL"];
        let of_environment = || variables.iter().find_map(|name| std::env::var(name).ok());
        let endpoint = self.endpoint.clone().or_else(of_environment);
        endpoint.is_some_and(|endpoint| is_loopback(&endpoint))
    }
}

fn has(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn env_has_credentials() -> bool {
    ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"].iter().any(|name| has(name))
}

fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    let host = match host.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or(six),
        None => host.split(':').next().unwrap_or(host),
    };
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn setup_failure(error: &AwsSetupError) -> CommandFailure {
    const LOCAL: &str = "for a stream on this machine run `anabranch local` and add \
                         --endpoint http://127.0.0.1:4567";
    CommandFailure::usage(match error {
        AwsSetupError::Http(mistake) => mistake.to_string(),
        AwsSetupError::NoRegion => format!(
            "no AWS region is set: give --region, set AWS_REGION, or `region` in the profile; {LOCAL}"
        ),
        AwsSetupError::NoCredentials { detail, .. } => format!(
            "no AWS credentials were found{}: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, give --profile, or run where a role is attached; {LOCAL}",
            // The provider errors of an empty chain are not helpful.
            if detail.contains("no credentials found in chain") {
                String::new()
            } else {
                format!(" ({detail})")
            }
        ),
        other => other.to_string(),
    })
}

impl AwsClients {
    /// Describes a stream before the work starts, so that a mistake is reported at once.
    pub(crate) async fn check_stream(
        &self,
        stream: &StreamName,
    ) -> Result<StreamSummary, CommandFailure> {
        self.ask(stream, || self.kinesis.describe(stream)).await
    }

    /// Returns the name under which an application stores the leases of a stream: the given name,
    /// or the stream's other name (see [`StreamNames`](anabranch_model::lease::StreamNames)).
    pub(crate) async fn name_in(
        &self,
        store: &AnyStore,
        given: &StreamName,
        summary: &StreamSummary,
    ) -> Result<StreamName, CommandFailure> {
        if store.layout() == Layout::Kcl {
            return Ok(given.clone());
        }
        let names = || stream_names(&self.kinesis, given, summary);
        let names = self.ask(given, names).await?;
        let known = store.application().await?;
        Ok(names.key(|name| known.knows(name)).clone())
    }

    /// Describes a stream before reading it, and reports missing read permissions at once.
    pub(crate) async fn check_before_reading(
        &self,
        stream: &StreamName,
    ) -> Result<StreamSummary, CommandFailure> {
        let summary = self.check_stream(stream).await?;
        match self.try_to_read(stream).await {
            Err(error) if error.fault == Fault::AccessDenied => {
                Err(explain::of_stream(self, stream, &error).await)
            }
            // Other errors may be transient.
            _ => Ok(summary),
        }
    }

    /// Makes each call of a reader once.
    async fn try_to_read(&self, stream: &StreamName) -> Result<(), StreamError> {
        let list = self.kinesis.list_shards(stream, ShardFilter::AtLatest).await?;
        if let Some(shard) = list.shards.first() {
            let iterator = self.kinesis.iterator(stream, &shard.id, ReadFrom::Latest).await?;
            self.kinesis.records(stream, &iterator, 1).await?;
        }
        Ok(())
    }

    /// Describes a stream. Returns `None` if that permission is missing, for callers that can do
    /// without.
    pub(crate) async fn check_if_allowed(
        &self,
        stream: &StreamName,
    ) -> Result<Option<StreamSummary>, CommandFailure> {
        match self.kinesis.describe(stream).await {
            Err(error) if error.fault == Fault::AccessDenied => Ok(None),
            Ok(summary) => Ok(Some(summary)),
            Err(_) => self.check_stream(stream).await.map(Some),
        }
    }

    /// Makes a call with retries, and explains its failure.
    pub(crate) async fn ask<T, F>(
        &self,
        stream: &StreamName,
        call: impl Fn() -> F,
    ) -> Result<T, CommandFailure>
    where
        F: Future<Output = Result<T, StreamError>>,
    {
        for attempt in 1.. {
            match call().await {
                Ok(reply) => return Ok(reply),
                Err(error) if attempt < ATTEMPTS && error.is_retryable() => {}
                Err(error) => return Err(explain::of_stream(self, stream, &error).await),
            }
            tokio::time::sleep(PAUSE).await;
        }
        unreachable!("the last attempt returns")
    }

    /// Explains why reading a stream ended. `begun` is true if records had already arrived.
    pub(crate) async fn reading_failed(
        &self,
        stream: &StreamName,
        error: &TailError,
        begun: bool,
    ) -> CommandFailure {
        let failure = match error {
            TailError::Stream(error) => explain::of_stream(self, stream, error).await,
            other => CommandFailure::result(other),
        };
        if begun { failure.after("the records before that are complete") } else { failure }
    }

    /// Returns the endpoint or the region, for messages.
    pub(crate) fn place(&self) -> String {
        let region = self.config.region().map_or("no region", |region| region.as_ref());
        match self.config.endpoint_url() {
            Some(endpoint) => format!("at {endpoint}"),
            None => format!("in {region}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_needs_no_credentials() {
        let check = |endpoint, expected| assert_eq!(is_loopback(endpoint), expected, "{endpoint}");
        check("http://127.0.0.1:4567", true);
        check("http://localhost:4567/", true);
        check("http://[::1]:4567", true);
        check("https://kinesis.us-east-1.amazonaws.com", false);
        check("http://localhost.example.com", false);
        check("http://10.0.0.1:4567", false);
    }
}
