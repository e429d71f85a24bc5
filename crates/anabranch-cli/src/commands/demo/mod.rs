//! `anabranch demo`: keyed records across one split and one merge, and a verdict.
//!
//! ```text
//! produce ──PutRecords──▶ local stream ──GetRecords──▶ follow
//!    │ what was accepted      ▲ split, merge              │ what was delivered
//!    └──────────▶ verdict ◀───┼───────────────────────────┘
//! ```

/// Prints a line; a reader that went away is no reason to stop.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod stream;
mod produce;
mod follow;
mod verdict;

use crate::failure::Failure;
use anabranch_local::Local;
use aws_sdk_kinesis::Client;
use std::time::Duration;
use stream::Stream;
use tokio::sync::watch;
use verdict::Verdict;

/// Shards that the stream begins with.
const SHARDS: i32 = 2;
/// How long the follower may need, once all is put, before the rest counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// What can be chosen about the demo.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How long to put records
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How many keys the records have
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    keys: u32,
    /// Records a second, of all keys together
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    rate: u32,
}

/// Runs the demo. The result is bad when a guarantee did not hold.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    let local = Local::start().await.map_err(Failure::usage)?;
    let stream = Stream::new(Client::new(&local.sdk_config()), "demo");
    say!("local stream at {}, {SHARDS} shards, {} keys", local.endpoint(), options.keys);

    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(Failure::result("stopped by Ctrl-C, no verdict")),
        outcome = perform(&stream, &options) => outcome,
    };
    local.stop().await;
    let verdict = outcome?;
    say!("\n{verdict}");
    if verdict.holds() { Ok(()) } else { Err(Failure::result("a guarantee was broken")) }
}

/// Puts, reshards and follows at once, then judges.
async fn perform(stream: &Stream, options: &Options) -> Result<Verdict, Failure> {
    stream.create(SHARDS).await?;
    let (finish, finished) = watch::channel(None);
    let produce = async {
        let accepted = produce::run(stream, options).await?;
        say!("all put  {} records", accepted.len());
        finish.send_replace(Some(accepted.len()));
        Ok(accepted)
    };
    let follow = follow::run(stream, finished, PATIENCE);
    let (accepted, reshards, delivered) =
        tokio::try_join!(produce, reshard(stream, options.seconds), follow)?;
    Ok(Verdict::of(&accepted, &delivered, reshards))
}

/// One split after a third of the time, one merge after two thirds.
async fn reshard(stream: &Stream, seconds: u64) -> Result<usize, Failure> {
    let third = Duration::from_secs(seconds) / 3;
    tokio::time::sleep(third).await;
    say!("split    {}", stream.split_first_open().await?);
    tokio::time::sleep(third).await;
    say!("merge    {}", stream.merge_last_open().await?);
    Ok(2)
}
