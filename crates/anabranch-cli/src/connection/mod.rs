//! Connection settings from options, environment variables and `anabranch.toml`.

mod file;
mod aws;
mod store;
mod kcl_streams;
mod explain;
mod slow_service;

pub(crate) use aws::AwsClients;
pub(crate) use kcl_streams::KclStreams;
pub(crate) use slow_service::notify_if_slow;

use crate::failure::CommandFailure;
use crate::shell_word::shell_word;
use anabranch::lease::{AnyStore, StoreAddress};
use file::ConfigFile;
use std::path::PathBuf;

/// Options for Kinesis and the lease store. Missing options default to `anabranch.toml`, and then
/// to the usual AWS configuration.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionOptions {
    /// Endpoint URL of Kinesis and DynamoDB, such as `http://127.0.0.1:4567`; without it, AWS
    #[arg(long, global = true, value_name = "URL", env = "ANABRANCH_ENDPOINT")]
    #[arg(hide_env_values = true)]
    endpoint: Option<String>,
    /// AWS region
    #[arg(long, global = true, value_name = "NAME", env = "ANABRANCH_REGION")]
    #[arg(hide_env_values = true)]
    region: Option<String>,
    /// AWS profile
    #[arg(long, global = true, value_name = "NAME", env = "ANABRANCH_PROFILE")]
    #[arg(hide_env_values = true)]
    profile: Option<String>,
    /// Lease store: sqlite:PATH, postgres:URL, dynamodb:TABLE, kcl:TABLE (the table of a Java KCL
    /// application) or memory
    #[arg(long, global = true, value_name = "STORE", env = "ANABRANCH_LEASES")]
    #[arg(hide_env_values = true)]
    leases: Option<StoreAddress>,
    /// File with these settings; without it, anabranch.toml in the current folder, if it exists
    #[arg(long, global = true, value_name = "FILE", env = "ANABRANCH_CONFIG")]
    #[arg(hide_env_values = true)]
    config: Option<PathBuf>,
}

/// Settings combined from options, variables and the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConnectionSettings {
    endpoint: Option<String>,
    region: Option<String>,
    profile: Option<String>,
    leases: Option<StoreAddress>,
}

impl ConnectionOptions {
    /// Reads the file. Options and variables take precedence.
    pub(crate) fn resolve(self) -> Result<ConnectionSettings, CommandFailure> {
        let file = ConfigFile::read(self.config.as_deref())?;
        let connection = ConnectionSettings {
            endpoint: self.endpoint.or(file.endpoint),
            region: self.region.or(file.region),
            profile: self.profile.or(file.profile),
            leases: self.leases.or(file.leases),
        };
        if let Some(endpoint) = &connection.endpoint {
            let (scheme, host) = endpoint.split_once("://").unwrap_or_default();
            if !["http", "https"].contains(&scheme) || host.is_empty() {
                return Err(CommandFailure::usage(format!(
                    "the endpoint {endpoint:?} is not a URL: it must begin with http:// or \
                     https://, such as http://127.0.0.1:4567"
                )));
            }
        }
        Ok(connection)
    }
}

impl ConnectionSettings {
    /// Returns settings for a stream at an endpoint, with all else unset.
    pub(crate) fn at(endpoint: &str) -> Self {
        Self { endpoint: Some(endpoint.to_owned()), ..Self::default() }
    }

    /// Returns a copy in which the given values override its own.
    pub(crate) fn with_overrides(
        &self,
        endpoint: Option<String>,
        region: Option<String>,
        profile: Option<String>,
    ) -> Self {
        Self {
            endpoint: endpoint.or_else(|| self.endpoint.clone()),
            region: region.or_else(|| self.region.clone()),
            profile: profile.or_else(|| self.profile.clone()),
            leases: self.leases.clone(),
        }
    }

    /// Formats the settings as command line options, for suggested commands. Passwords are omitted.
    pub(crate) fn options(&self) -> String {
        let leases = self.leases.as_ref().map(ToString::to_string);
        let options = [
            ("leases", &leases),
            ("endpoint", &self.endpoint),
            ("region", &self.region),
            ("profile", &self.profile),
        ];
        let option = |(name, value): (&str, &Option<String>)| {
            value.as_ref().map(|value| format!(" --{name} {}", shell_word(value)))
        };
        options.into_iter().filter_map(option).collect()
    }

    /// Opens the lease store of an application. Returns an error if none is configured.
    pub(crate) async fn leases(&self, application: &str) -> Result<AnyStore, CommandFailure> {
        let address = self.leases.as_ref().ok_or_else(no_leases)?;
        self.store(address, application).await
    }

    /// Returns the table name if leases are kept in a KCL application's table.
    pub(crate) fn kcl_table(&self, application: &str) -> Option<String> {
        match &self.leases {
            Some(address @ StoreAddress::Kcl(_)) => address.table(application).map(str::to_owned),
            _ => None,
        }
    }

    /// Opens the existing lease store of an application and creates nothing. A given `stream` must
    /// be one of those in the store.
    pub(crate) async fn existing_leases(
        &self,
        application: &str,
        stream: Option<&str>,
    ) -> Result<AnyStore, CommandFailure> {
        let address = self.leases.as_ref().ok_or_else(no_leases)?;
        self.existing_store(address, application, stream).await
    }
}

fn no_leases() -> CommandFailure {
    CommandFailure::usage(
        "no lease store is given: use --leases sqlite:leases.db (for this machine), postgres:URL, \
         dynamodb:TABLE, kcl:TABLE (shared with Java) or memory (lost at exit), or set \
         ANABRANCH_LEASES, or `leases` in anabranch.toml",
    )
}
