//! What the properties say: every key of Java's daemon honoured, mapped, or named in a warning.

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

/// A properties file, read and judged.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// What to run with.
    pub config: Config,
    /// Every effective value and where it came from.
    pub rows: Vec<EffectiveValue>,
    /// What is odd, but no reason to stop.
    pub warnings: Vec<String>,
}

/// Why a properties file can't be run with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("properties file {}: {error}: give its path with --properties-file", .path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is no properties file.
    #[error("properties file {}: {error}", .path.display())]
    Malformed {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        error: EscapeError,
    },
    /// It says what can't be done: everything that is wrong, at once.
    #[error("properties file {}: {}", .path.display(), .wrong.join("; "))]
    Invalid {
        /// Its path.
        path: PathBuf,
        /// One sentence for each.
        wrong: Vec<String>,
    },
}

/// Reads a properties file.
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

/// Judges what a properties file holds. The error is everything that is wrong with it.
pub fn judge(entries: Vec<properties::Property>) -> Result<LoadedConfig, Vec<String>> {
    let mut reading = PropertyReader::new(entries);
    let config = settings::read(&mut reading);
    let (rows, warnings, wrong) = reading.close();
    match config {
        Some(config) if wrong.is_empty() => Ok(LoadedConfig { config, rows, warnings }),
        _ => Err(wrong),
    }
}
