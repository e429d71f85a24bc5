//! `anabranch tail`: all records of a stream as they come, through splits and merges.

use super::consume::record_sink::LineFormat;
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::notices;
use crate::printer::{self, Printer};
use crate::time_spec::TimeSpec;
use anabranch::consumer::Delivery;
use anabranch::stream::api::{StreamApi, StreamError};
use anabranch::tail::Tail;
use anabranch_model::ids::StreamName;

/// Lines are printed together up to so many bytes.
const TOGETHER_BYTES: usize = 64 << 10;
/// A line waits for so many records, at the most, that are there too.
const TOGETHER: usize = 1_000;

/// What can be chosen about a tail.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
It reads for itself alone and stores nothing. A shard that was split or merged is read to its end \
before those that follow it, so each key comes in order. KPL aggregates are taken apart.

What --json prints can be put again with `anabranch put`.")]
pub(crate) struct TailOptions {
    /// The stream
    stream: String,
    /// Where to start: trim, latest, an age such as 10m, or a time such as 2026-05-01T12:00:00Z;
    /// latest by default, with --until-caught-up trim
    #[arg(long, value_name = "TIME")]
    since: Option<TimeSpec>,
    /// Only records of this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only records whose data holds this text
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Print JSON objects
    #[arg(long)]
    json: bool,
    /// End when everything that is in the stream has come
    #[arg(long)]
    until_caught_up: bool,
    /// End after so many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

impl TailOptions {
    /// Whether a record is wanted.
    fn wants(&self, record: &Delivery) -> bool {
        let key = self.key.as_ref().is_none_or(|key| record.partition_key.as_str() == key);
        key && self.grep.as_ref().is_none_or(|text| holds(&record.data, text.as_bytes()))
    }
}

/// Whether bytes hold others.
fn holds(data: &[u8], text: &[u8]) -> bool {
    text.is_empty() || data.windows(text.len()).any(|window| window == text)
}

/// Prints records until it is told to stop.
pub(crate) async fn run(
    options: TailOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let aws = connection.aws().await?;
    let stream = StreamName::from(options.stream.as_str());
    aws.check_before_reading(&stream).await?;
    let usual = if options.until_caught_up { TimeSpec::Trim } else { TimeSpec::Latest };
    let mut tail = Tail::new(aws.kinesis.clone(), stream.clone())
        .since(options.since.unwrap_or(usual).start())
        .with_idle_poll_ms(500)
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

/// Prints records until there are no more. A failure comes with whether any had come before.
///
/// Lines that are there together are printed together, because each print waits for the thread that
/// prints.
async fn follow<A: StreamApi>(
    tail: &mut Tail<A>,
    options: &TailOptions,
    printer: &Printer,
) -> Result<(), (StreamError, bool)> {
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

/// What comes next of a stream.
enum NextRecord {
    Record(Delivery),
    /// Nothing is there now.
    NotYet,
    Failed(StreamError),
}

/// What comes next; `None` behind the end. It is waited for if `waits`.
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
