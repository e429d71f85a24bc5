//! Kinesis and DynamoDB as a command reaches them.

use super::{ConnectionSettings, explain, slow_service};
use crate::failure::CommandFailure;
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

/// How often a call is made that may pass later.
const ATTEMPTS: u32 = 3;
/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(300);
/// The region of a local stream, unless somebody says otherwise.
const LOCAL_REGION: &str = "us-east-1";

/// Kinesis, and the configuration for other clients of AWS.
#[derive(Clone, Debug)]
pub(crate) struct AwsClients {
    /// What every client is made from.
    pub(crate) config: SdkConfig,
    /// Kinesis.
    pub(crate) kinesis: AwsKinesis,
}

impl ConnectionSettings {
    /// Reaches for AWS, or for the endpoint that stands in for it. No call is made yet.
    pub(crate) async fn aws(&self) -> Result<AwsClients, CommandFailure> {
        let mut access = AwsAccess {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            profile: self.profile.clone(),
            credentials: None,
        };
        if self.is_local() {
            if self.profile.is_none() && !env_has_credentials() {
                // A stream on this machine checks no signature.
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

    /// The region for an endpoint on this machine: that of the environment or the profile, if they
    /// have one. Nobody else is asked: most of what listens there does not care.
    async fn region_here(&self) -> String {
        let mut profile = ProfileFileRegionProvider::builder();
        if let Some(name) = &self.profile {
            profile = profile.profile_name(name);
        }
        let told = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new());
        let told = told.or_else(profile.build()).region().await;
        told.map_or_else(|| LOCAL_REGION.to_owned(), |region| region.to_string())
    }

    /// Whether the endpoint is on this machine.
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
            // What each provider of an empty chain says helps nobody.
            if detail.contains("no credentials found in chain") {
                String::new()
            } else {
                format!(" ({detail})")
            }
        ),
    })
}

impl AwsClients {
    /// Looks at a stream before work begins, so that a mistake is told at once and in words.
    pub(crate) async fn check_stream(
        &self,
        stream: &StreamName,
    ) -> Result<StreamSummary, CommandFailure> {
        self.ask(stream, || self.kinesis.describe(stream)).await
    }

    /// The name under which an application keeps the leases of a stream: the one that was given, or
    /// the stream's other name (see [`StreamNames`](anabranch_model::lease::StreamNames)).
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

    /// The same before a stream is read: whoever may not read it is told so before the first record
    /// is waited for.
    pub(crate) async fn check_before_reading(
        &self,
        stream: &StreamName,
    ) -> Result<StreamSummary, CommandFailure> {
        let summary = self.check_stream(stream).await?;
        match self.try_to_read(stream).await {
            Err(error) if error.fault == Fault::AccessDenied => {
                Err(explain::of_stream(self, stream, &error).await)
            }
            // Whatever else is wrong may pass.
            _ => Ok(summary),
        }
    }

    /// Makes each call that a reader makes, once.
    async fn try_to_read(&self, stream: &StreamName) -> Result<(), StreamError> {
        let list = self.kinesis.list_shards(stream, ShardFilter::AtLatest).await?;
        if let Some(shard) = list.shards.first() {
            let iterator = self.kinesis.iterator(stream, &shard.id, ReadFrom::Latest).await?;
            self.kinesis.records(stream, &iterator, 1).await?;
        }
        Ok(())
    }

    /// The same for those who can work without: `None` where looking is not allowed.
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

    /// Makes a call that may be repeated, and says in words why it failed.
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

    /// Why reading a stream ended, in words. `begun` says whether records had come before.
    pub(crate) async fn reading_failed(
        &self,
        stream: &StreamName,
        error: &StreamError,
        begun: bool,
    ) -> CommandFailure {
        let failure = explain::of_stream(self, stream, error).await;
        if begun { failure.after("what came before that is whole") } else { failure }
    }

    /// The address that calls go to, for messages.
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
