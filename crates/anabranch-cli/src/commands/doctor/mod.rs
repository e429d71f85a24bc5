//! `anabranch doctor`: finds problems between a stream and an application, with evidence and fixes.
//!
//! ```text
//! stream, lease store ── gather (polls over a lease time) ──▶ DoctorFacts ── diagnose ──▶ Finding
//! ```

mod facts;
mod gather;
mod diagnose;

use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::output::print_line;
use anabranch_model::ids::StreamName;
use diagnose::{Finding, Severity, diagnose};
use std::time::Duration;

/// Options of `anabranch doctor`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
The command only reads. It watches heartbeats for --watch, or for the lease time on a worker's row \
if that is longer, because a dead worker shows only over time. The leader of KCL 3.x needs --watch \
2m.

Exit code 1 if a problem was found, 0 if there are none or only notes.")]
pub(crate) struct DoctorOptions {
    /// Stream name
    stream: String,
    /// Application that reads the stream
    app: String,
    /// Time to watch for heartbeats: at least KCL's failover time; a worker whose row has a longer
    /// lease time is watched for that long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    watch: Duration,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Examines the application and prints the findings.
pub(crate) async fn run(
    options: DoctorOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let store = connection.existing_leases(&options.app, Some(&options.stream)).await?;
    let aws = connection.aws().await?;
    let stream = StreamName::from(options.stream.as_str());
    let table = connection.kcl_table(&options.app);
    let mut facts =
        gather::facts(&aws, &stream, &options.app, &store, table.as_deref(), options.watch).await?;
    facts.options = connection.options();
    let findings = diagnose(&facts);
    if options.json {
        print_line!("{}", serde_json::to_string(&findings).unwrap_or_default());
    } else {
        show(&facts.headline(), &findings);
    }
    let problems = findings.iter().filter(|f| f.severity == Severity::Problem).count();
    match problems {
        0 => Ok(()),
        1 => Err(CommandFailure::result("1 problem was found")),
        many => Err(CommandFailure::result(format!("{many} problems were found"))),
    }
}

fn show(headline: &str, findings: &[Finding]) {
    print_line!("{headline}");
    for finding in findings {
        let word = match finding.severity {
            Severity::Problem => "PROBLEM",
            Severity::Note => "note",
        };
        print_line!("\n{word}: {}", finding.what);
        print_line!("  evidence: {}", finding.evidence);
        print_line!("  fix:      {}", finding.mend);
    }
    if findings.is_empty() {
        print_line!("no problems found");
    }
}
