//! Worker process of the demo, which logs the records that it handles.

use super::deliveries;
use crate::commands::consume::record_sink::RecordSink;
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use anabranch::clock::Clock;
use anabranch::consumer::Consumer;
use anabranch::event::{Event, Events, LeaseEvent};
use anabranch::lease::StoreAddress;
use anabranch_model::position::StartPosition;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Lease time of a demo worker: short, so that a killed worker is replaced soon.
pub(super) const LEASE_MS: u64 = 2_500;

/// Options from the demo to its workers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoWorkerOptions {
    /// Name in the log
    #[arg(long)]
    name: String,
    /// Name of the stream and of the application
    #[arg(long)]
    stream: String,
    /// Endpoint of the local stream
    #[arg(long)]
    at: String,
    /// SQLite file of the lease store
    #[arg(long)]
    rows: PathBuf,
    /// Log file that all workers append to
    #[arg(long)]
    log: PathBuf,
}

/// Consumes until it is stopped, or until the demo is gone.
pub(crate) async fn run(options: DemoWorkerOptions) -> Result<(), CommandFailure> {
    // A killed demo closes the pipe, and its workers must not stay behind.
    std::thread::spawn(|| {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        std::process::exit(1);
    });
    let file = OpenOptions::new().append(true).open(&options.log);
    let file = Arc::new(
        file.map_err(|error| CommandFailure::usage(format!("the log can't be opened: {error}")))?,
    );
    let connection = ConnectionSettings::at(&options.at);
    let kinesis = connection.aws().await?.kinesis;
    let leases = connection.store(&StoreAddress::Sqlite(options.rows), &options.stream).await?;
    let name: Arc<str> = options.name.into();
    let clock = Clock::machine();
    let outlet = RecordSink::Append {
        file: Arc::clone(&file),
        line: Box::new({
            let (name, clock) = (Arc::clone(&name), clock.clone());
            move |shard, record| deliveries::line(&name, clock.now_ms(), shard, record)
        }),
    };
    let events = Events::new(move |event| {
        if let Event::Lease(LeaseEvent::Evicted { .. }) = event {
            // A starved worker counts as crashed in the verdict.
            let _ = (&*file).write_all(deliveries::expelled(&name, clock.now_ms()).as_bytes());
        }
    });
    let consumer = Consumer::new(options.stream.as_str(), options.stream.as_str())
        .with_kinesis(kinesis)
        .with_leases(leases)
        .with_handler(outlet)
        .starting_at(StartPosition::TrimHorizon)
        .with_events(events)
        .with_settings(|settings| {
            settings.lease_time = Duration::from_millis(LEASE_MS);
            settings.idle_poll_interval = Duration::from_millis(200);
        });
    Box::pin(consumer.run()).await.map_err(CommandFailure::result)
}
