//! Relaying until somebody asks to stop.

use super::outbox::OutboxOptions;
use super::{could_not_start, counted};
use crate::commands::put::send::producer_name;
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::notices;
use crate::output::print_note;
use anabranch::event::{Event, Events, RelayEvent};
use anabranch::producer::Aggregation;
use anabranch_outbox::{Relay, RelayError, RowFormat};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How rows are carried.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RelayRunOptions {
    /// The stream
    #[arg(long, required = true)]
    stream: Option<String>,
    /// What a row becomes: envelope (JSON with the event's id, headers and data) or data (as it is)
    #[arg(long, value_name = "FORMAT", default_value = "envelope")]
    format: RowFormatArg,
    /// One record of the stream for each row, for readers that can't take aggregates apart
    #[arg(long)]
    no_aggregation: bool,
    /// Name this relay's producer in warnings, in at most 128 characters; without it, a name is
    /// drawn at random
    #[arg(long, value_name = "NAME", value_parser = producer_name)]
    producer_id: Option<String>,
    /// Mark each aggregate, so that consumers of this library drop the second copy that a lost
    /// reply may leave: 48 bytes, which other readers skip
    #[arg(long, conflicts_with = "no_aggregation")]
    marks: bool,
    /// How often to look for rows without being told of them, such as 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    poll: Duration,
    /// Rows that may be under way at a time: what a crash can repeat
    #[arg(long, value_name = "ROWS", default_value_t = 20_000)]
    max_in_flight: usize,
    /// How long a stop waits for rows that are on their way
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    drain: Duration,
    /// After which silence of this relay another one takes over
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    takeover: Duration,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RowFormatArg {
    Envelope,
    Data,
}

/// Relays until somebody asks to stop.
pub(super) async fn run(
    options: RelayRunOptions,
    outbox: &OutboxOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let stream =
        options.stream.ok_or_else(|| CommandFailure::usage("give the stream with --stream"))?;
    let (database, table) = (outbox.database()?, outbox.table()?);
    let label = table.label();
    let stopped = crate::signals::wait_for_signal(1)?;
    let forced = crate::signals::wait_for_signal(2)?;
    let aws = connection.aws().await?;
    let sent = Arc::new(AtomicU64::new(0));
    let aggregation = if options.no_aggregation { Aggregation::Off } else { Aggregation::ByShard };
    let relay = Relay::new(database, table, &stream)
        .with_format(match options.format {
            RowFormatArg::Envelope => RowFormat::Envelope,
            RowFormatArg::Data => RowFormat::Data,
        })
        .with_producer(|producer| {
            let producer = producer.with_aggregation(aggregation).with_dedup_tags(options.marks);
            match options.producer_id {
                Some(id) => producer.with_id(id),
                None => producer,
            }
        })
        .with_poll(options.poll)
        .with_max_held(options.max_in_flight)
        .with_grace_period(options.drain)
        .with_takeover_timeout(options.takeover)
        .with_events(events(Arc::clone(&sent)));
    let stop = CancellationToken::new();
    let ended = tokio::select! {
        biased;
        () = forced => {
            return Err(CommandFailure::result("stopped at once by a second signal: rows may come again"));
        }
        ended = cancel(stopped, stop.clone()) => ended,
        ended = relay.run(&aws.kinesis, stop) => ended,
    };
    ended.map_err(|error| match error {
        RelayError::Left { .. } => CommandFailure::result(error),
        other => could_not_start(other),
    })?;
    let rows = counted(sent.load(Ordering::Relaxed), "row", "rows");
    print_note!("{rows} of {label} went to {stream}");
    Ok(())
}

/// Passes a signal on, and leaves the end to the relay.
async fn cancel(
    stopped: impl Future<Output = ()>,
    stop: CancellationToken,
) -> Result<(), RelayError> {
    stopped.await;
    stop.cancel();
    std::future::pending().await
}

/// Prints what an operator has to know, and counts rows.
fn events(sent: Arc<AtomicU64>) -> Events {
    let printed = notices::printed(true);
    Events::new(move |event| {
        if let Event::Relay(RelayEvent::Sent { rows, .. }) = event {
            sent.fetch_add(*rows, Ordering::Relaxed);
        }
        printed.emit(event.clone());
    })
}
