//! `anabranch cp`: copies records between streams and files, each key in order.

use super::put::{self, PutSink, RecordOrigin, SendOptions};
use crate::connection::{AwsClients, ConnectionSettings};
use crate::failure::CommandFailure;
use crate::input::Input;
use crate::line;
use crate::notices;
use crate::output::{self, print_note};
use crate::time_spec::TimeSpec;
use anabranch::consumer::Delivery;
use anabranch::event::{Event, Events, ShardEvent};
use anabranch::producer::NewRecord;
use anabranch::stream::AwsKinesis;
use anabranch::tail::Tail;
use anabranch_model::ids::StreamName;
use bytes::Bytes;
use std::fs::OpenOptions;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Options of `anabranch cp`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
A place is stream:NAME, a file of JSON lines, or - for standard input and output:

    anabranch cp stream:orders orders.jsonl
    anabranch cp orders.jsonl stream:orders-again
    anabranch cp stream:orders stream:orders --to-region eu-west-1

The copy ends when it has caught up with the stream. With --follow it continues with new records \
until SIGTERM or Ctrl-C. Records read by then are still put, and the exit code is 0 if all of them \
were placed.")]
pub(crate) struct CopyOptions {
    /// Source of the records
    from: CopyEndpoint,
    /// Destination; a file must not exist yet
    to: CopyEndpoint,
    /// Start position in the stream: trim, latest, an age such as 10m, or a time
    #[arg(long, value_name = "TIME", default_value = "trim")]
    since: TimeSpec,
    /// Continue with new records
    #[arg(long)]
    follow: bool,
    /// Endpoint of the destination stream, if it differs
    #[arg(long, value_name = "URL")]
    to_endpoint: Option<String>,
    /// Region of the destination stream, if it differs
    #[arg(long, value_name = "NAME")]
    to_region: Option<String>,
    /// AWS profile for the destination stream, if it differs
    #[arg(long, value_name = "NAME")]
    to_profile: Option<String>,
    #[command(flatten)]
    sending: SendOptions,
}

/// Source or destination of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CopyEndpoint {
    Stream(StreamName),
    /// A file, or `-`.
    File(PathBuf),
}

impl FromStr for CopyEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("stream:") {
            Some("") => Err("the stream name is missing: give stream:NAME".to_owned()),
            Some(name) => Ok(Self::Stream(name.into())),
            None => Ok(Self::File(text.into())),
        }
    }
}

/// Runs the copy.
pub(crate) async fn run(
    options: CopyOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let there = connection.with_overrides(
        options.to_endpoint.clone(),
        options.to_region.clone(),
        options.to_profile.clone(),
    );
    let stop = crate::signals::wait_for_signal(1)?;
    match (&options.from, &options.to) {
        (CopyEndpoint::File(_), CopyEndpoint::File(_)) => {
            Err(CommandFailure::usage("neither place is a stream: give one of them as stream:NAME"))
        }
        (CopyEndpoint::Stream(from), CopyEndpoint::Stream(to))
            if from == to && there == *connection =>
        {
            Err(into_itself(from))
        }
        (CopyEndpoint::File(file), CopyEndpoint::Stream(to)) => {
            let input = Input::open(std::slice::from_ref(file))?;
            let mut sink = PutSink::start(&there.aws().await?, to, &options.sending).await?;
            let fed = from_file(input, &mut sink, stop).await;
            close(sink, to, fed).await
        }
        (CopyEndpoint::Stream(from), CopyEndpoint::Stream(to)) => {
            let (aws, there) = (connection.aws().await?, there.aws().await?);
            let source = aws.check_before_reading(from).await?;
            // A stream has several names and addresses. Two local emulators have the same account,
            // so their streams differ only in the creation time.
            let target = there.check_if_allowed(to).await?;
            if target.is_some_and(|it| (it.arn, it.created_ms) == (source.arn, source.created_ms)) {
                return Err(into_itself(from));
            }
            let mut sink = PutSink::start(&there, to, &options.sending).await?;
            let mut reading = CopySource::new(&aws, from, &options);
            let fed = from_stream(&aws, &mut reading, &mut sink, stop).await;
            let fed = fed.and_then(|()| reading.whole());
            close(sink, to, fed).await
        }
        (CopyEndpoint::Stream(from), CopyEndpoint::File(file)) => {
            let aws = connection.aws().await?;
            aws.check_before_reading(from).await?;
            to_file(&aws, CopySource::new(&aws, from, &options), file, stop).await
        }
    }
}

/// Copies a stream into another. Records already read are put even after a stop request.
async fn from_stream(
    aws: &AwsClients,
    reading: &mut CopySource,
    sink: &mut PutSink,
    stop: impl Future<Output = ()>,
) -> Result<(), CommandFailure> {
    let mut stop = std::pin::pin!(stop);
    let mut forced = std::pin::pin!(crate::signals::wait_for_signal(2)?);
    loop {
        let next = tokio::select! {
            biased;
            () = &mut stop => return reading.stopped(),
            () = sink.refused() => return Err(sink.gave_up()),
            next = async { sink.hand_over().await; reading.next(aws).await } => next?,
        };
        let Some(record) = next else { return Ok(()) };
        let origin = RecordOrigin::Record(record.shard.shard.clone(), record.sequence);
        tokio::select! {
            biased;
            () = &mut forced => return Err(stopped()),
            put = sink.put(origin, again(&record)) => put?,
        }
    }
}

/// Copies a stream into a file. An empty file is removed if nothing could be read.
async fn to_file(
    aws: &AwsClients,
    mut reading: CopySource,
    file: &Path,
    stop: impl Future<Output = ()>,
) -> Result<(), CommandFailure> {
    let mut out = create(file)?;
    let mut count = 0_u64;
    let mut unread = false;
    let copying = async {
        while let Some(record) = reading.next(aws).await? {
            let line = line::json(&record.shard.shard, &record);
            match out.write_all(line.as_bytes()) {
                // The reader of the pipe, such as `head`, has seen enough.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    unread = true;
                    return Ok(());
                }
                written => written.map_err(|error| unwritable(file, &error))?,
            }
            count += 1;
        }
        Ok(())
    };
    // A record is read and written in the same poll, so a stop happens between two records.
    let copied = tokio::select! {
        biased;
        () = stop => None,
        copied = copying => Some(copied),
    };
    let copied = copied.unwrap_or_else(|| reading.stopped());
    let copied = copied.and_then(|()| reading.whole());
    match out.flush() {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => unread = true,
        flushed => flushed.map_err(|error| unwritable(file, &error))?,
    }
    let standard = is_standard(file);
    if copied.is_err() && count == 0 && !standard {
        // This command created the file, and it is empty.
        let _ = std::fs::remove_file(file);
    } else if !unread {
        let name = file.display().to_string();
        let place = if standard { "standard output" } else { &name };
        print_note!("copied {count} records of {} to {place}", reading.stream);
    }
    copied
}

fn into_itself(stream: &StreamName) -> CommandFailure {
    CommandFailure::usage(format!(
        "stream {stream} can't be copied into itself: choose another destination"
    ))
}

fn stopped() -> CommandFailure {
    CommandFailure::result("stopped before the end of the copy")
}

fn unwritable(file: &Path, error: &std::io::Error) -> CommandFailure {
    if is_standard(file) {
        return output::unwritten(error);
    }
    CommandFailure::result(format!("{} can't be written: {error}", file.display()))
}

fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

fn create(file: &Path) -> Result<Box<dyn Write + Send>, CommandFailure> {
    if is_standard(file) {
        return Ok(Box::new(std::io::stdout()));
    }
    let made = OpenOptions::new().write(true).create_new(true).open(file);
    let made = made.map_err(|error| {
        CommandFailure::usage(format!(
            "{} can't be created: {error}; choose another file",
            file.display()
        ))
    })?;
    Ok(Box::new(BufWriter::new(made)))
}

/// A stream that is being copied.
struct CopySource {
    tail: Tail<AwsKinesis>,
    stream: StreamName,
    /// True if the copy continues with new records.
    follow: bool,
    /// True once a record has arrived.
    begun: bool,
    /// Number of records that could not be read.
    lost: Arc<AtomicUsize>,
}

impl CopySource {
    fn new(aws: &AwsClients, stream: &StreamName, options: &CopyOptions) -> Self {
        let lost = Arc::default();
        let tail = Tail::new(stream.clone())
            .with_kinesis(aws.kinesis.clone())
            .since(options.since.start())
            .with_idle_poll_interval(Duration::from_millis(500))
            .with_events(counting(Arc::clone(&lost)));
        Self { tail, stream: stream.clone(), follow: options.follow, begun: false, lost }
    }

    /// Returns the result of a stop request: success with `--follow`, else an incomplete copy.
    fn stopped(&self) -> Result<(), CommandFailure> {
        if self.follow { Ok(()) } else { Err(stopped()) }
    }

    /// Returns an error if some records could not be read.
    fn whole(&self) -> Result<(), CommandFailure> {
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            lost => Err(CommandFailure::result(format!(
                "{lost} records of {} can't be read, because the aggregates that held them are \
                 damaged; they are not in the copy",
                self.stream
            ))),
        }
    }

    async fn next(&mut self, aws: &AwsClients) -> Result<Option<Delivery>, CommandFailure> {
        let next = if self.follow {
            self.tail.next().await
        } else {
            self.tail.next_until_caught_up().await
        };
        match next.transpose() {
            Ok(record) => {
                self.begun = true;
                Ok(record)
            }
            Err(error) => Err(aws.reading_failed(&self.stream, &error, self.begun).await),
        }
    }
}

/// Returns a listener that prints notices and counts unreadable records.
fn counting(lost: Arc<AtomicUsize>) -> Events {
    let notices = notices::printed(false);
    Events::new(move |event| {
        if let Event::Shard(ShardEvent::AggregateUnreadable { records, .. }) = event {
            lost.fetch_add(*records, Ordering::Relaxed);
        }
        notices.emit(event.clone());
    })
}

/// Copies a record for the producer. A slice would keep the whole reply in memory while it waits,
/// and the producer's limit counts only the record.
fn again(record: &Delivery) -> NewRecord {
    let data = Bytes::copy_from_slice(&record.data);
    let new = NewRecord::new(record.partition_key.as_str(), data);
    match record.explicit_hash_key {
        Some(hash) => new.with_explicit_hash_key(hash),
        None => new,
    }
}

async fn from_file(
    input: Input,
    sink: &mut PutSink,
    stop: impl Future<Output = ()>,
) -> Result<(), CommandFailure> {
    let mut lines = input.lines();
    let mut stop = std::pin::pin!(stop);
    loop {
        let Some(line) = put::next(&mut lines, sink, stop.as_mut()).await? else { return Ok(()) };
        if line.text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let origin = RecordOrigin::from(&line);
        let record = line::read_json(&line.text).map_err(|why| {
            CommandFailure::result(format!(
                "{origin}: {why}. The lines before it were put; the rest were not"
            ))
        })?;
        tokio::select! {
            biased;
            () = &mut stop => return Err(stopped()),
            put = sink.put(origin, record) => put?,
        }
    }
}

/// Waits for all outcomes and reports them.
async fn close(
    sink: PutSink,
    to: &StreamName,
    fed: Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let tally = sink.close().await;
    tally.report(to, false);
    fed?;
    tally.verdict(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::lease::LeaseKey;
    use anabranch_model::record::UserRecord;

    #[test]
    fn a_record_that_waits_to_be_put_again_keeps_nothing_of_its_reply() {
        let reply = Bytes::from(vec![7; 10 << 20]);
        let record = UserRecord {
            sequence: "7".parse().unwrap(),
            sub: 0,
            aggregated: false,
            partition_key: "k".into(),
            explicit_hash_key: None,
            data: reply.slice(5..8),
            arrival_ms: 0,
        };
        let shard = Arc::new(LeaseKey::new("s", "shardId-000000000000"));
        let waits = again(&Delivery { shard, lease_term: None, record });
        assert!(reply.is_unique(), "{waits:?} holds the whole reply");
    }
}
