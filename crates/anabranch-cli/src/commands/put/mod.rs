//! `anabranch put`: puts lines as records, each key in order.
//!
//! ```text
//! Input ──InputLine──▶ read ──NewRecord──▶ Producer ──Ticket──▶ PutCounts ──▶ summary
//! ```

pub(crate) mod send;
mod counts;

use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::input::{Input, InputLine, Lines};
use crate::line;
use crate::output::print_note;
use anabranch::producer::NewRecord;
use anabranch_model::ids::StreamName;
use bytes::Bytes;
pub(crate) use counts::PutCounts;
pub(crate) use send::{PutSink, RecordOrigin, SendOptions};
use std::path::PathBuf;
use std::pin::Pin;

/// Options of `anabranch put`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
One record per line: {\"key\": \"customer-7\", \"data\": \"paid\"}. Use \"data_base64\" for binary \
data; \"hash_key\" is optional. The output of `tail --json` can be put again.

Each key keeps the order of its lines, through retries, splits and merges. A record that the \
stream refuses stops its key: later records of the key are refused too. Exit code 1 if a record \
was refused or has an unknown outcome.

A refusal of the caller (permissions, credentials, the stream's encryption key) stops no key. \
Before the first record is placed, the command gives up after a few seconds. Later, records wait \
until the refusal ends, or for --timeout.")]
pub(crate) struct PutOptions {
    /// Stream name
    stream: String,
    /// Files to read; without any, or for -, standard input
    files: Vec<PathBuf>,
    /// Use each line as the data of a record, unparsed
    #[arg(long, requires = "key")]
    lines: bool,
    /// Partition key of all records, with --lines
    #[arg(long, requires = "lines")]
    key: Option<String>,
    /// Skip invalid lines instead of stopping there
    #[arg(long)]
    skip_bad_lines: bool,
    #[command(flatten)]
    sending: SendOptions,
    /// Print the summary as a JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Puts all lines.
pub(crate) async fn run(
    options: PutOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    if options.key.as_deref() == Some("") {
        return Err(CommandFailure::usage("--key is empty: give 1 to 256 characters"));
    }
    let input = Input::open(&options.files)?;
    let aws = connection.aws().await?;
    let stream = StreamName::from(options.stream.as_str());
    let stop = crate::signals::wait_for_signal(1)?;
    let mut sink = PutSink::start(&aws, &stream, &options.sending).await?;
    let fed = feed(&options, input, &mut sink, stop).await;
    let tally = sink.close().await;
    tally.report(&stream, options.json);
    fed?;
    tally.verdict(&stream)
}

/// Reads lines and puts them, until the input ends, an error occurs or a stop is requested.
async fn feed(
    options: &PutOptions,
    input: Input,
    sink: &mut PutSink,
    stop: impl Future<Output = ()>,
) -> Result<(), CommandFailure> {
    let mut lines = input.lines();
    let mut stop = std::pin::pin!(stop);
    let mut forced = std::pin::pin!(crate::signals::wait_for_signal(2)?);
    loop {
        let Some(line) = next(&mut lines, sink, stop.as_mut()).await? else { return Ok(()) };
        let origin = RecordOrigin::from(&line);
        let record = match read(options, &line) {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            Err(why) if options.skip_bad_lines => {
                print_note!("warning: {origin}: {why}; skipped");
                sink.tally().refuse();
                continue;
            }
            Err(why) => {
                return Err(CommandFailure::result(format!(
                    "{origin}: {why}. The lines before it were put; the rest were not"
                )));
            }
        };
        tokio::select! {
            biased;
            () = &mut forced => return Err(CommandFailure::result("stopped at once by a second signal")),
            () = &mut stop => return Err(CommandFailure::result("stopped before the end of the input")),
            put = sink.put(origin, record) => put?,
        }
    }
}

/// Returns the next line, or `None` after the last. Hands over pending records before it waits.
pub(crate) async fn next(
    lines: &mut Lines,
    sink: &mut PutSink,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<InputLine>, CommandFailure> {
    if let Some(line) = lines.try_recv() {
        return Ok(Some(line));
    }
    tokio::select! {
        biased;
        () = stop => Err(CommandFailure::result("stopped before the end of the input")),
        () = sink.refused() => Err(sink.gave_up()),
        line = async { sink.hand_over().await; lines.recv().await } => line.transpose(),
    }
}

/// Parses the record of a line. Returns `None` for an empty line between JSON objects.
fn read(options: &PutOptions, line: &InputLine) -> Result<Option<NewRecord>, String> {
    match &options.key {
        Some(key) => line::new_record(key.clone(), Bytes::copy_from_slice(&line.text)).map(Some),
        None if line.text.iter().all(u8::is_ascii_whitespace) => Ok(None),
        None => line::read_json(&line.text).map(Some),
    }
}
