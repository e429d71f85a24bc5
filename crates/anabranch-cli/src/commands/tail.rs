//! `anabranch tail`: prints all records of a stream as they arrive, through splits and merges.

use super::consume::record_sink::LineFormat;
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::notices;
use crate::printer::{self, Printer};
use crate::time_spec::TimeSpec;
use anabranch::TailError;
use anabranch::consumer::Delivery;
use anabranch::stream::api::StreamApi;
use anabranch::tail::Tail;
use anabranch_model::ids::StreamName;
use std::time::Duration;

/// Maximum bytes of lines that are printed together.
const TOGETHER_BYTES: usize = 64 << 10;
/// Maximum records examined before the collected lines are printed.
const TOGETHER: usize = 1_000;

/// Options of `anabranch tail`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
The command reads without leases and stores nothing. A shard that was split or merged is read to \
its end before its children, so each key stays in order. KPL aggregates are deaggregated.

The output of --json can be put again with `anabranch put`.")]
pub(crate) struct TailOptions {
    /// Stream name
    stream: String,
    /// Start position: trim, latest, an age such as 10m, or a time such as 2026-05-01T12:00:00Z;
    /// latest by default, or trim with --until-caught-up
    #[arg(long, value_name = "TIME")]
    since: Option<TimeSpec>,
    /// Print only records with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Print only records whose data contains this text
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Print JSON objects
    #[arg(long)]
    json: bool,
    /// Exit after all current records
    #[arg(long)]
    until_caught_up: bool,
    /// Exit after this many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

impl TailOptions {
    /// Returns true if the record matches the filters.
    fn wants(&self, record: &Delivery) -> bool {
        let key = self.key.as_ref().is_none_or(|key| record.partition_key.as_str() == key);
        key && self.grep.as_ref().is_none_or(|text| holds(&record.data, text.as_bytes()))
    }
}

/// Returns true if `data` contains `text`.
fn holds(data: &[u8], text: &[u8]) -> bool {
    text.is_empty() || data.windows(text.len()).any(|window| window == text)
}

/// Prints records until it is stopped.
pub(crate) async fn run(
    options: TailOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let aws = connection.aws().await?;
    let stream = StreamName::from(options.stream.as_str());
    aws.check_before_reading(&stream).await?;
    let usual = if options.until_caught_up { TimeSpec::Trim } else { TimeSpec::Latest };
    let mut tail = Tail::new(stream.clone())
        .with_kinesis(aws.kinesis.clone())
        .since(options.since.unwrap_or(usual).start())
        .with_idle_poll_interval(Duration::from_millis(500))
        .with_events(notices::printed(false));
    let (printer, thread) = Printer::start();
    let stop = crate::signals::wait_for_signal(1)?;
    let gone = printer.clone();
    let ended = tokio::select! {
        biased;
        () = stop => Ok(()),
        () = gone.wait_closed() => Ok(()),
        ended = follow(&mut tail, &options, &printer) => match ended {
            Err((error, begun)) => Err(aws.reading_failed(&stream, &error, begun).await),
            Ok(()) => Ok(()),
        },
    };
    drop((printer, gone));
    let output = printer::end(thread).await;
    ended.and(output.map(drop))
}

/// Prints records until there are no more. An error comes with a flag that is true if records had
/// already arrived.
///
/// Lines that are available together are printed together, because each print waits for the
/// printing thread.
async fn follow<A: StreamApi>(
    tail: &mut Tail<A>,
    options: &TailOptions,
    printer: &Printer,
) -> Result<(), (TailError, bool)> {
    let form = if options.json { LineFormat::Json } else { LineFormat::Plain };
    let mut left = options.limit.unwrap_or(u64::MAX);
    let mut begun = false;
    let (mut lines, mut looked_at) = (String::new(), 0);
    loop {
        let next = if left == 0 { None } else { next(tail, options, lines.is_empty()).await };
        let end = match next {
            Some(NextRecord::Record(record)) => {
                begun = true;
                if options.wants(&record) {
                    left -= 1;
                    lines.push_str(&form.line(&record.shard, &record));
                }
                looked_at += 1;
                if lines.len() < TOGETHER_BYTES && looked_at < TOGETHER {
                    continue;
                }
                None
            }
            Some(NextRecord::NotYet) => None,
            Some(NextRecord::Failed(error)) => Some(Err((error, begun))),
            None => Some(Ok(())),
        };
        looked_at = 0;
        let gone = !lines.is_empty() && printer.print(std::mem::take(&mut lines)).await.is_err();
        match end {
            Some(end) => return end,
            None if gone => return Ok(()),
            None => {}
        }
    }
}

/// Next event of a stream.
enum NextRecord {
    Record(Delivery),
    /// No record is available now.
    NotYet,
    Failed(TailError),
}

/// Returns the next event, or `None` at the end. Waits for it only if `waits` is true.
async fn next<A: StreamApi>(
    tail: &mut Tail<A>,
    options: &TailOptions,
    waits: bool,
) -> Option<NextRecord> {
    let next = async {
        if options.until_caught_up { tail.next_until_caught_up().await } else { tail.next().await }
    };
    tokio::select! {
        biased;
        next = next => next.map(|next| next.map_or_else(NextRecord::Failed, NextRecord::Record)),
        () = std::future::ready(()), if !waits => Some(NextRecord::NotYet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_in_bytes() {
        for (data, text, expected) in [
            (&b"paid 7"[..], "aid", true),
            (b"paid", "paid!", false),
            (b"", "", true),
            (b"", "x", false),
            (&[0xff, b'x', 0xff], "x", true),
        ] {
            assert_eq!(holds(data, text.as_bytes()), expected, "{data:?} {text}");
        }
    }
}
