//! Relay main command, which runs until it is stopped.

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

/// Options for relaying rows.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RelayRunOptions {
    /// Stream name
    #[arg(long, required = true)]
    stream: Option<String>,
    /// Record format: envelope (JSON with the event's id, headers and data) or data (unchanged)
    #[arg(long, value_name = "FORMAT", default_value = "envelope")]
    format: RowFormatArg,
    /// Put each row as a separate Kinesis record, for readers that can't deaggregate
    #[arg(long)]
    no_aggregation: bool,
    /// Producer name in warnings, at most 128 characters; without it, a random name
    #[arg(long, value_name = "NAME", value_parser = producer_name)]
    producer_id: Option<String>,
    /// Add a deduplication tag to each aggregate, so that consumers of this library drop duplicates
    /// after a lost reply: 48 bytes, which other readers skip
    #[arg(long, conflicts_with = "no_aggregation", visible_alias = "marks")]
    dedup_tags: bool,
    /// Poll interval without notifications, such as 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    poll: Duration,
    /// Maximum rows in flight, which a crash can duplicate
    #[arg(long, value_name = "ROWS", default_value_t = 20_000)]
    max_in_flight: usize,
    /// Grace period at shutdown for rows in flight
    #[arg(long, value_name = "TIME", default_value = "10s", visible_alias = "drain")]
    #[arg(value_parser = humantime::parse_duration)]
    grace_period: Duration,
    /// Silence of this relay after which another one takes over
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    takeover: Duration,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RowFormatArg {
    Envelope,
    Data,
}

/// Relays until it is stopped.
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
            let producer =
                producer.with_aggregation(aggregation).with_dedup_tags(options.dedup_tags);
            match options.producer_id {
                Some(id) => producer.with_id(id),
                None => producer,
            }
        })
        .with_poll(options.poll)
        .with_max_held(options.max_in_flight)
        .with_grace_period(options.grace_period)
        .with_takeover_timeout(options.takeover)
        .with_events(events(Arc::clone(&sent)));
    let stop = CancellationToken::new();
    let ended = tokio::select! {
        biased;
        () = forced => {
            return Err(CommandFailure::result("stopped at once by a second signal: rows in flight \
                                               may be sent again"));
        }
        ended = cancel(stopped, stop.clone()) => ended,
        ended = relay.run(&aws.kinesis, stop) => ended,
    };
    ended.map_err(|error| match error {
        RelayError::Left { .. } => CommandFailure::result(error),
        other => could_not_start(other),
    })?;
    let rows = counted(sent.load(Ordering::Relaxed), "row", "rows");
    print_note!("sent {rows} of {label} to {stream}");
    Ok(())
}

/// Forwards a stop signal and lets the relay end by itself.
async fn cancel(
    stopped: impl Future<Output = ()>,
    stop: CancellationToken,
) -> Result<(), RelayError> {
    stopped.await;
    stop.cancel();
    std::future::pending().await
}

/// Returns a listener that prints notices and counts sent rows.
fn events(sent: Arc<AtomicU64>) -> Events {
    let printed = notices::printed(true);
    Events::new(move |event| {
        if let Event::Relay(RelayEvent::Sent { rows, .. }) = event {
            sent.fetch_add(*rows, Ordering::Relaxed);
        }
        printed.emit(event.clone());
    })
}
