//! Daemon configuration: every key of Java's daemon is supported, mapped or reported in a warning.

mod keys;
mod reading;
mod settings;
mod program;
mod report;
#[cfg(test)]
mod tests;

pub use anabranch::cloudwatch::MetricsLevel;
pub use keys::{KEYS, KeySupport, PropertyKey};
pub use reading::{EffectiveValue, ValueOrigin};
pub use settings::{Config, MetricsSettings, OnChildFailure, Service};

use crate::properties::{self, EscapeError};
use reading::PropertyReader;
use std::path::{Path, PathBuf};

/// A validated properties file.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The resulting configuration.
    pub config: Config,
    /// Every effective value with its origin.
    pub rows: Vec<EffectiveValue>,
    /// Warnings that do not prevent the daemon from running.
    pub warnings: Vec<String>,
}

/// Error in a properties file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("properties file {}: {error}: give its path with --properties-file", .path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The file violates the properties syntax.
    #[error("properties file {}: {error}", .path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The invalid escape.
        error: EscapeError,
    },
    /// Values are invalid. Holds all errors at once.
    #[error("properties file {}: {}", .path.display(), .wrong.join("; "))]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// One sentence per error.
        wrong: Vec<String>,
    },
}

/// Reads and validates a properties file.
pub fn load(path: &Path) -> Result<LoadedConfig, ConfigError> {
    let path = || path.to_owned();
    let bytes =
        std::fs::read(path()).map_err(|error| ConfigError::Unreadable { path: path(), error })?;
    let entries = properties::parse(&bytes)
        .map_err(|error| ConfigError::Malformed { path: path(), error })?;
    let mut loaded =
        judge(entries).map_err(|wrong| ConfigError::Invalid { path: path(), wrong })?;
    let search = std::env::var_os("PATH");
    loaded.warnings.extend(program::trouble(&loaded.config.command, search.as_deref()));
    Ok(loaded)
}

/// Validates the entries of a properties file. Returns all errors at once.
pub fn judge(entries: Vec<properties::Property>) -> Result<LoadedConfig, Vec<String>> {
    let mut reading = PropertyReader::new(entries);
    let config = settings::read(&mut reading);
    let (rows, warnings, wrong) = reading.close();
    match config {
        Some(config) if wrong.is_empty() => Ok(LoadedConfig { config, rows, warnings }),
        _ => Err(wrong),
    }
}
