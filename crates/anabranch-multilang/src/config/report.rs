//! Report of `--check-config`: every effective value and its origin.

use super::{LoadedConfig, ValueOrigin};
use std::fmt;
use std::path::Path;

impl LoadedConfig {
    /// Returns a human-readable report on the file.
    pub fn report<'a>(&'a self, path: &'a Path) -> impl fmt::Display + 'a {
        Report { loaded: self, path }
    }
}

struct Report<'a> {
    loaded: &'a LoadedConfig,
    path: &'a Path,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadedConfig { rows, warnings, .. } = self.loaded;
        let keys = rows.iter().map(|row| row.key.len()).max().unwrap_or(0);
        let values = rows.iter().map(|row| row.value.chars().count()).max().unwrap_or(0).min(60);
        for row in rows {
            let origin = match &row.origin {
                ValueOrigin::Line(line) => format!("{}:{line}", self.path.display()),
                ValueOrigin::Key(key) => format!("from {key}"),
                ValueOrigin::Default => "default".to_owned(),
            };
            writeln!(f, "{:<keys$}  {:<values$}  {origin}", row.key, row.value)?;
        }
        for warning in warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}
