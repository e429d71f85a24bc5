//! `anabranch redrive`: processes dead letters again, each key in order.
//!
//! ```text
//! file | table ── records in stream order ──▶ child of the shard, or standard output
//!       ◀── done: removed, failed: kept ──────┘
//! ```

use super::consume::dead_letter::DeadLetterPlace;
use super::consume::exec::Exec;
use super::consume::record_sink::LineFormat;
use crate::failure::CommandFailure;
use crate::line::short;
use crate::output::print_note;
use crate::printer::{self, OutputRead, Printer, STDOUT_CLOSED};
use anabranch::consumer::{DeadLetterError, Delivery, HandlerError, RedriveSummary};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Error for a record that was not handled before a stop.
const STOPPED: &str = "stopped before it was handled";
/// Failures that are printed one by one.
const TOLD: usize = 20;

/// Options of `anabranch redrive`.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("to").required(true).args(["exec", "print"]))]
#[command(after_help = "\
The program reads and answers as with `anabranch consume --exec`. Records that succeed are removed \
from the queue. When a record fails, later records of its key stay too; other keys continue. After \
a kill, the next redrive continues where this one stopped. Consumers may add dead letters in the \
meantime; a second redrive is refused.

Dead letters in a stream are redriven by a consumer of that stream: anabranch consume STREAM \
--from-dead-letter.

Exit code 1 if records remain.")]
pub(crate) struct RedriveOptions {
    /// Dead-letter queue, as given to `consume --dead-letter`: a file, sqlite:PATH#TABLE or
    /// postgres:URL#TABLE
    place: DeadLetterPlace,
    /// Program that handles the records, run by `sh -c`
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Print the records as JSON objects; printed records are done
    #[arg(long)]
    print: bool,
    /// Time limit for the program to answer a record
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "exec")]
    #[arg(value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// Target of the records.
#[derive(Clone)]
enum RedriveTarget {
    /// The child of the record's shard.
    Exec(Exec),
    /// Standard output.
    Print(Printer),
}

impl RedriveTarget {
    async fn hand(&self, record: Delivery) -> Result<(), HandlerError> {
        let line = LineFormat::Json.line(&record.shard, &record);
        match self {
            Self::Exec(children) => children.send(&record.shard.shard, line).await,
            Self::Print(printer) => printer.print(line).await.map_err(|_| STDOUT_CLOSED.into()),
        }
    }
}

/// Runs the redrive.
pub(crate) async fn run(options: RedriveOptions) -> Result<(), CommandFailure> {
    let Some(queue) = options.place.open_existing().await? else {
        print_note!("no dead letters in {}: there is no such file", options.place);
        return Ok(());
    };
    let (printer, thread) = Printer::start();
    let children = options.exec.as_ref().map(|command| Exec::new(command, options.timeout));
    let to =
        children.clone().map_or_else(|| RedriveTarget::Print(printer.clone()), RedriveTarget::Exec);
    let stopping = Arc::new(AtomicBool::new(false));
    let handle = |record: Delivery| {
        let (to, stopping) = (to.clone(), Arc::clone(&stopping));
        async move {
            if stopping.load(Ordering::Relaxed) {
                return Err(STOPPED.into());
            }
            to.hand(record).await
        }
    };
    let (stop, force) = (crate::signals::wait_for_signal(1)?, crate::signals::wait_for_signal(2)?);
    let reader = printer.clone();
    let stop = async {
        tokio::select! {
            biased;
            () = stop => {}
            () = reader.wait_closed() => {}
        }
        stopping.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let ended = {
        let mut redrive = pin!(queue.redrive(handle));
        tokio::select! {
            biased;
            () = force => None,
            () = stop => None,
            ended = &mut redrive => Some(ended),
        }
    };
    if let Some(children) = children {
        // A forced stop does not wait.
        let patience = if ended.is_none() { Duration::ZERO } else { Duration::MAX };
        children.close(patience).await;
    }
    drop((printer, reader, to));
    let Some(ended) = ended else {
        return Err(CommandFailure::result(
            "stopped at once by a second signal: run it again to continue",
        ));
    };
    let judged = exit_result(&options.place, &ended.map_err(not_redriven)?);
    match printer::end(thread).await? {
        OutputRead::Whole => judged,
        OutputRead::Partial => Ok(()),
    }
}

/// Converts an error. A redrive that is already running counts as a usage error.
fn not_redriven(error: DeadLetterError) -> CommandFailure {
    match error {
        DeadLetterError::Busy { .. } => CommandFailure::usage(error),
        _ => CommandFailure::result(error),
    }
}

/// Reports the results.
fn exit_result(place: &DeadLetterPlace, redriven: &RedriveSummary) -> Result<(), CommandFailure> {
    let RedriveSummary { done, left, failures, unreadable } = redriven;
    let said = |why: &str| why != STOPPED && why != STDOUT_CLOSED;
    let failed: Vec<_> = failures.iter().filter(|(_, why)| said(why)).collect();
    for (letter, why) in failed.iter().take(TOLD) {
        let (shard, record) = (short(&letter.shard.shard), &letter.record);
        print_note!(
            "warning: {shard} {} key {:?}: {why}",
            record.sequence,
            record.partition_key.as_str()
        );
    }
    if failed.len() > TOLD {
        print_note!("warning: {} more keys failed", failed.len() - TOLD);
    }
    print_note!("{place}: {done} records were redriven, {left} dead letters remain");
    match (left, unreadable) {
        (0, 0) => Ok(()),
        (left, 0) => Err(CommandFailure::result(format!(
            "{left} dead letters remain in {place}: run the redrive again when the program can \
             handle them"
        ))),
        (left, unreadable) => Err(CommandFailure::result(format!(
            "{left} dead letters remain in {place}, and {unreadable} of its lines can't be read: \
             inspect them"
        ))),
    }
}
