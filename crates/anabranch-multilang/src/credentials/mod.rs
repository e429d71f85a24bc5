//! Credentials providers, configured by the names of Java's provider classes.

mod names;
mod providers;

pub use names::{Parsed, Provider, ProviderListError, parse};
pub use providers::{CredentialsUnavailable, check, provider, set_endpoint};
