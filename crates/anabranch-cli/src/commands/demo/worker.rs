//! A worker of the demo, in a process of its own: it writes down what it is given.

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

/// For how long a worker of the demo may be silent: short, so that a kill is soon made up for.
pub(super) const LEASE_MS: u64 = 2_500;

/// What the demo tells its workers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoWorkerOptions {
    /// The name in the log
    #[arg(long)]
    name: String,
    /// The stream, which is the application too
    #[arg(long)]
    stream: String,
    /// The local stream's address
    #[arg(long)]
    at: String,
    /// The file of leases
    #[arg(long)]
    rows: PathBuf,
    /// The file that all workers append to
    #[arg(long)]
    log: PathBuf,
}

/// Consumes until it is told to stop, or until the demo is gone.
pub(crate) async fn run(options: DemoWorkerOptions) -> Result<(), CommandFailure> {
    // A demo that was killed closes the pipe, and its workers must not stay behind.
    std::thread::spawn(|| {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        std::process::exit(1);
    });
    let file = OpenOptions::new().append(true).open(&options.log);
    let file = Arc::new(file.map_err(|error| CommandFailure::usage(format!("the log: {error}")))?);
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
            // A worker that starved is like one that crashed, and the verdict has to know.
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
            settings.lease_time = LEASE_MS;
            settings.idle_poll_interval = 200;
        });
    Box::pin(consumer.run()).await.map_err(CommandFailure::result)
}
