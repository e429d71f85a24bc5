//! `anabranch consume`: a load-balanced consumer with checkpoints, for programs in any language.
//!
//! ```text
//! Consumer ── records of a shard ──▶ RecordSink ─┬─▶ Exec ── JSON line ──▶ child of the shard
//!                                                │     ◀── ok | fail: why ──┘
//!                                                └─▶ Printer ──▶ standard output
//! ```

pub(crate) mod record_sink;
pub(crate) mod exec;
mod child;
pub(crate) mod dead_letter;

use crate::connection::{ConnectionSettings, notify_if_slow};
use crate::failure::CommandFailure;
use crate::notices;
use crate::printer::{self, Printer};
use crate::time_spec::TimeSpec;
use anabranch::clock::Clock;
use anabranch::consumer::{Consumer, OnError, RunError};
use anabranch::event::{Event, Events, ShardEvent};
use anabranch::lease::LeaseStore;
use anabranch::lease::stores::dynamodb::KclStreamId;
use anabranch_model::ids::StreamName;
use dead_letter::DeadLetterPlace;
use exec::Exec;
use record_sink::{LineFormat, RecordSink};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Upper bound of the handler watchdog, in milliseconds.
const MOST_MS: u64 = 86_400_000;

/// Options of `anabranch consume`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
With --exec, a shell runs CMD once for each shard. CMD reads one JSON object per line: shard, \
sequence, sub, key, data (or data_base64, for bytes that are not UTF-8) and arrived. It answers \
each, in order, with a line `ok` or `fail: why`. Failed records are retried with growing pauses. A \
child that exits is restarted; one that does not answer within --timeout is killed and restarted. \
Its other output lines are printed on standard error.

Without --exec, records are printed, and printed records are done.

Run several: all processes with the same --app and --leases share the shards. SIGTERM, Ctrl-C and \
a closed terminal stop the command gracefully, without duplicates.

Records left undone by a stop, a closed pipe or a program that a signal ended never become dead \
letters.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct ConsumeOptions {
    /// Stream name; in a KCL table for several streams also account:stream:epoch
    stream: String,
    /// Application name; consumers with the same name share the shards and the checkpoints
    #[arg(long, value_name = "NAME")]
    app: String,
    /// Program that handles the records, run by `sh -c`
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Maximum records of one shard in progress at once, of different keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Start position if the application has no checkpoint: trim, latest, an age such as 10m, or a
    /// time
    #[arg(long, value_name = "TIME", default_value = "trim")]
    since: TimeSpec,
    /// Use enhanced fan-out instead of polling
    #[arg(long)]
    fan_out: bool,
    /// Time limit for the program to answer a record
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "exec")]
    #[arg(value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Dead-letter queue for records that failed --attempts times: a file, sqlite:PATH#TABLE,
    /// postgres:URL#TABLE or stream:NAME; without it, they are retried forever
    #[arg(long, value_name = "PLACE", visible_alias = "park")]
    dead_letter: Option<DeadLetterPlace>,
    /// Attempts before a record goes to the dead-letter queue
    #[arg(long, value_name = "N", default_value_t = 5, requires = "dead_letter")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// Read a stream of dead letters, written by `--dead-letter stream:NAME`, and pass on the
    /// original records
    #[arg(long, visible_alias = "parked")]
    from_dead_letter: bool,
    /// Silence after which other workers take this worker's shards
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    lease_time: Duration,
    /// Grace period at shutdown for records in progress; the rest is interrupted and redelivered
    #[arg(long, value_name = "TIME", default_value = "20s", visible_alias = "grace")]
    #[arg(value_parser = humantime::parse_duration)]
    grace_period: Duration,
    /// Print records as JSON objects
    #[arg(long, conflicts_with = "exec")]
    json: bool,
    /// Print lease changes
    #[arg(long, short)]
    verbose: bool,
}

/// Consumes until it is stopped.
pub(crate) async fn run(
    options: ConsumeOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let start = options.since.start();
    let leases = connection.leases(&options.app).await?;
    let aws = connection.aws().await?;
    // A KCL stream id contains colons, which stream names never do.
    let named: Option<KclStreamId> = options.stream.parse().ok();
    let stream = StreamName::from(named.as_ref().map_or(&*options.stream, KclStreamId::stream));
    let summary = if options.fan_out {
        aws.check_stream(&stream).await?
    } else {
        aws.check_before_reading(&stream).await?
    };
    let dead_letters = match &options.dead_letter {
        Some(place) => Some(place.open(&aws, (&stream, &summary)).await?),
        None => None,
    };
    notify_if_slow("the lease store to answer", leases.prepare()).await?;
    let read = (&stream, &summary);
    let leases = connection.store_to_read(leases, &options.app, read, named.as_ref()).await?;

    let (printer, thread) = Printer::start();
    let asked = StopRequestedAt::default();
    let exec = |command: &String| Exec::new(command, options.timeout).until(asked.token.clone());
    let children = options.exec.as_ref().map(exec);
    let form = if options.json { LineFormat::Json } else { LineFormat::Plain };
    let unwrap = options.from_dead_letter;
    let outlet = match &children {
        Some(children) => RecordSink::Exec { children: children.clone(), unwrap },
        None => RecordSink::Print { printer: printer.clone(), form, unwrap },
    };
    let mut consumer = Consumer::new(stream, options.app.as_str())
        .with_kinesis(aws.kinesis)
        .with_leases(leases)
        .with_handler(outlet)
        .with_concurrency(usize::from(options.concurrency))
        .starting_at(start)
        .with_events(events(children.clone(), options.verbose))
        .with_settings(|settings| {
            settings.lease_time = Duration::from_millis(millis(options.lease_time));
            settings.grace_period = Duration::from_millis(millis(options.grace_period));
            // The watchdog must fire after the program's own timeout.
            let limit_ms = millis(options.timeout).saturating_mul(2).min(MOST_MS);
            settings.watchdog.handler_ms = settings.watchdog.handler_ms.max(limit_ms);
        });
    if options.fan_out {
        consumer = consumer.with_fan_out();
    }
    if let Some(to) = dead_letters {
        consumer = consumer.on_error(OnError::DeadLetter { attempts: options.attempts, to });
    }
    let (stop, force) = (crate::signals::wait_for_signal(1)?, crate::signals::wait_for_signal(2)?);
    let (reader, ask) = (printer.clone(), asked.clone());
    let stop = async move {
        tokio::select! {
            biased;
            () = stop => {}
            () = reader.wait_closed() => {}
        }
        ask.stop();
    };
    let ended = tokio::select! {
        biased;
        () = force => Err(RunError::Forced),
        ended = Box::pin(consumer.run_until(stop)) => ended,
    };
    if let Some(children) = children {
        let forced = matches!(ended, Err(RunError::Forced));
        let patience = if forced { Duration::ZERO } else { asked.grace_left(options.grace_period) };
        children.close(patience).await;
    }
    drop(printer);
    match ended {
        Err(error @ (RunError::Settings(_) | RunError::Start(_) | RunError::Signals(_))) => {
            return Err(CommandFailure::usage(chain(&error)));
        }
        Err(error) => return Err(CommandFailure::result(chain(&error))),
        Ok(()) => {}
    }
    printer::end(thread).await.map(drop)
}

/// Minimum time for children to exit, even after the grace period.
const FAREWELL: Duration = Duration::from_secs(1);

/// Time of the stop request. Clones share it.
#[derive(Clone, Default)]
struct StopRequestedAt {
    /// Cancelled by the stop request.
    token: CancellationToken,
    /// Time of the stop request, by the machine's clock.
    at_ms: Arc<OnceLock<u64>>,
}

impl StopRequestedAt {
    /// Records the stop request.
    fn stop(&self) {
        let _ = self.at_ms.set(Clock::machine().now_ms());
        self.token.cancel();
    }

    /// Returns the rest of the grace period for the exit of the children.
    fn grace_left(&self, grace: Duration) -> Duration {
        let Some(at_ms) = self.at_ms.get() else { return Duration::MAX };
        let passed_ms = Clock::machine().now_ms().saturating_sub(*at_ms);
        grace.saturating_sub(Duration::from_millis(passed_ms)).max(FAREWELL)
    }
}

/// Returns a listener that prints notices, and closes children whose shards are no longer read.
fn events(children: Option<Exec>, verbose: bool) -> Events {
    let notices = notices::printed(verbose);
    Events::new(move |event| {
        if let (Event::Shard(ShardEvent::Stopped { shard, .. }), Some(children)) =
            (event, &children)
        {
            children.close_shard(&shard.shard);
        }
        notices.emit(event.clone());
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats an error and its sources on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        below = error.source();
    }
    text
}
