//! Credentials, from the names of Java's provider classes that a properties file holds.

mod names;
mod providers;

pub use names::{Parsed, Provider, ProviderListError, parse};
pub use providers::{CredentialsUnavailable, check, provider, set_endpoint};
