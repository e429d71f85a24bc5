//! `anabranch multilang`: the KCL multi-language daemon without a JVM.

use crate::failure::CommandFailure;
use crate::signals::wait_for_signal;
use anabranch::consumer::RunError;
use anabranch_multilang::config;
use anabranch_multilang::{Daemon, DaemonError};
use std::io;
use std::path::{Path, PathBuf};
use tracing::Level;

/// Options of `anabranch multilang`. Other settings are in the properties file.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Runs the official KCL workers for Python, Node, Ruby and .NET unchanged, with their properties
file: docs/multilang.md.")]
pub(crate) struct MultilangOptions {
    /// Properties file
    #[arg(short, long, value_name = "FILE", required_unless_present = "file")]
    properties_file: Option<PathBuf>,
    /// Properties file
    #[arg(value_name = "FILE", conflicts_with = "properties_file")]
    file: Option<PathBuf>,
    /// A logback.xml file, of which only the root level is used
    #[arg(short, long, value_name = "FILE")]
    log_configuration: Option<PathBuf>,
    /// Print every effective value with its origin, and exit
    #[arg(long)]
    check_config: bool,
}

/// Runs the daemon until it is stopped, or prints its configuration.
pub(crate) async fn run(options: MultilangOptions) -> Result<(), CommandFailure> {
    let path = options.properties_file.or(options.file).unwrap_or_default();
    let loaded = config::load(&path).map_err(CommandFailure::usage)?;
    if options.check_config {
        crate::output::show(&loaded.report(&path).to_string());
        return Ok(());
    }
    let told = options.log_configuration.as_deref().map(log_level);
    let level = told.as_ref().and_then(|found| found.as_ref().ok()).copied().unwrap_or(Level::INFO);
    // Standard output is left alone, because a wrapper of the daemon may use it.
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr);
    // The reader of the log may be gone, and there is no other place to report that.
    log.with_ansi(false).log_internal_errors(false).init();
    if let Some(Err(why)) = told {
        tracing::warn!("{why}: using level INFO");
    }
    for warning in &loaded.warnings {
        tracing::warn!("{}: {warning}", path.display());
    }
    let stop = wait_for_signal(1)?;
    let force = wait_for_signal(2)?;
    let daemon = async {
        let daemon = Box::pin(Daemon::connect(loaded.config)).await?;
        Box::pin(daemon.run(stop)).await
    };
    tokio::select! {
        biased;
        () = force => Err(CommandFailure::result(
            "stopped at once by a second signal: other workers take over after the failover time",
        )),
        ended = daemon => ended.map_err(|error| match error {
            DaemonError::Run(
                RunError::CoordinatorEnded
                | RunError::StreamDeleted(_)
                | RunError::LeaseTableDeleted(_)
                | RunError::Unreleased { .. }
                | RunError::Interrupted { .. }
                | RunError::LeaveFailed
                | RunError::Forced,
            )
            | DaemonError::ChildFailed => CommandFailure::result(chain(&error)),
            _ => CommandFailure::usage(chain(&error)),
        }),
    }
}

/// Formats an error and its sources on one line.
fn chain(error: &DaemonError) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(source) = below {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        below = source.source();
    }
    text
}

/// Returns the level of the root logger of a logback file, or the reason that there is none.
fn log_level(path: &Path) -> Result<Level, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("log configuration {}: {error}", path.display()))?;
    let root = text.split("<root").nth(1).and_then(|rest| rest.split('>').next());
    let level = root.and_then(|root| root.split("level=").nth(1));
    let level = level.map(|level| level.trim_matches(|c| c == '"' || c == '\'' || c == ' '));
    let level = level.and_then(|level| level.split(['"', '\'']).next()).unwrap_or_default();
    match level.to_uppercase().as_str() {
        "ALL" | "TRACE" => Ok(Level::TRACE),
        "DEBUG" => Ok(Level::DEBUG),
        "INFO" => Ok(Level::INFO),
        "WARN" => Ok(Level::WARN),
        "ERROR" | "OFF" => Ok(Level::ERROR),
        _ => Err(format!("log configuration {} has no <root level=\"…\">", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_of_a_logback_file_is_found() {
        for (text, expected) in [
            (r#"<configuration><root level="INFO"><a/></root></configuration>"#, Some(Level::INFO)),
            (r#"<root  level = "debug" >"#, None),
            (r"<root level='warn'>", Some(Level::WARN)),
            (r#"<logger level="DEBUG"/>"#, None),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(log_level(file.path()).ok(), expected, "{text}");
        }
    }
}
