//! What every command may be told about where things are: options, variables, `anabranch.toml`.

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

/// Where Kinesis is, and where leases are kept. What is left out is looked for in `anabranch.toml`,
/// and then where every AWS tool looks.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionOptions {
    /// Address of Kinesis and DynamoDB, such as `http://127.0.0.1:4567`; without it, AWS
    #[arg(long, global = true, value_name = "URL", env = "ANABRANCH_ENDPOINT")]
    #[arg(hide_env_values = true)]
    endpoint: Option<String>,
    /// AWS region
    #[arg(long, global = true, value_name = "NAME", env = "ANABRANCH_REGION")]
    #[arg(hide_env_values = true)]
    region: Option<String>,
    /// Profile of the AWS configuration files
    #[arg(long, global = true, value_name = "NAME", env = "ANABRANCH_PROFILE")]
    #[arg(hide_env_values = true)]
    profile: Option<String>,
    /// Where leases are kept: sqlite:PATH, postgres:URL, dynamodb:TABLE, kcl:TABLE (the table of a
    /// Java KCL application) or memory
    #[arg(long, global = true, value_name = "STORE", env = "ANABRANCH_LEASES")]
    #[arg(hide_env_values = true)]
    leases: Option<StoreAddress>,
    /// File with these settings; without it, anabranch.toml in this folder, if there is one
    #[arg(long, global = true, value_name = "FILE", env = "ANABRANCH_CONFIG")]
    #[arg(hide_env_values = true)]
    config: Option<PathBuf>,
}

/// What holds once options, variables and the file are put together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConnectionSettings {
    /// The address of Kinesis and DynamoDB.
    endpoint: Option<String>,
    /// The region.
    region: Option<String>,
    /// The profile of the AWS configuration files.
    profile: Option<String>,
    /// Where leases are kept.
    leases: Option<StoreAddress>,
}

impl ConnectionOptions {
    /// Reads the file, and lets options and variables go before it.
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
                    "the endpoint {endpoint:?} is not an address: it begins with http:// or \
                     https://, such as http://127.0.0.1:4567"
                )));
            }
        }
        Ok(connection)
    }
}

impl ConnectionSettings {
    /// What is needed to reach a stream at an address, and nothing else.
    pub(crate) fn at(endpoint: &str) -> Self {
        Self { endpoint: Some(endpoint.to_owned()), ..Self::default() }
    }

    /// The same, but where another place is named.
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

    /// The same settings as options of a command that a person is told to run. A password is left
    /// out.
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

    /// The lease store of an application, which the configuration has to name.
    pub(crate) async fn leases(&self, application: &str) -> Result<AnyStore, CommandFailure> {
        let address = self.leases.as_ref().ok_or_else(no_leases)?;
        self.store(address, application).await
    }

    /// The table, where leases are kept in that of a KCL application.
    pub(crate) fn kcl_table(&self, application: &str) -> Option<String> {
        match &self.leases {
            Some(address @ StoreAddress::Kcl(_)) => address.table(application).map(str::to_owned),
            _ => None,
        }
    }

    /// The lease store of an application that is there already: nothing is made. A `stream` that
    /// is named has to be one of those that the store is for.
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
        "nothing says where leases are kept: give --leases sqlite:leases.db (for this machine), \
         postgres:URL, dynamodb:TABLE, kcl:TABLE (beside Java) or memory (forgotten at the end), \
         or set ANABRANCH_LEASES, or `leases` in anabranch.toml",
    )
}
