//! `anabranch demo`: sends keyed records through splits, merges, a stop and a kill, and checks the
//! result.
//!
//! ```text
//! produce ──Producer──▶ local stream ──▶ three worker processes ──▶ deliveries.log
//!    │ accepted records      ▲ split, merge      ▲ SIGTERM, SIGKILL        │ delivered records
//!    │                       └──── scenario ─────┘                         ▼
//!    └───────────────────────────────▶ verdict ◀────────────────────── deliveries
//! ```

mod stream;
mod produce;
pub(crate) mod worker;
mod workers;
mod deliveries;
mod scenario;
mod view;
mod verdict;

use crate::failure::CommandFailure;
use crate::output::{self, print_line};
use anabranch_local::Local;
use deliveries::DeliveryLog;
use produce::PutLog;
use std::sync::Arc;
use std::time::Duration;
use stream::DemoStream;
use verdict::DemoVerdict;
use view::DemoView;
use workers::DemoWorkers;

/// Initial number of shards.
const SHARDS: i32 = 4;
/// Time for the workers to deliver the remaining records after the last put. Others count as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Refresh interval of the view.
const LOOK: Duration = Duration::from_millis(250);
/// Name of the stream and of the application.
const NAME: &str = "demo";

/// Options of `anabranch demo`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
The demo runs on this machine only: a local stream, three worker processes that share its shards, \
and a producer that keeps every key in order. Shards are split and merged while records flow, one \
worker is stopped gracefully and replaced, and one is killed. The verdict compares the accepted \
records with the delivered ones. Exit code 1 if a guarantee was broken.")]
pub(crate) struct DemoOptions {
    /// Duration of the puts, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Number of distinct keys
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keys: u32,
    /// Records per second, over all keys
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,
    /// Random seed for the shards that are split or merged and the workers that stop
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the demo. Returns a failure if a guarantee was broken.
pub(crate) async fn run(options: DemoOptions) -> Result<(), CommandFailure> {
    let stop = crate::signals::wait_for_signal(1)?;
    let folder = tempfile::Builder::new().prefix("anabranch-demo-").tempdir();
    let folder = folder.map_err(|error| {
        CommandFailure::usage(format!(
            "no temporary folder can be created: {error}; choose another place with TMPDIR"
        ))
    })?;
    let local = Local::start().await.map_err(CommandFailure::usage)?;
    let stream = Arc::new(DemoStream::new(&local.sdk_config(), NAME));
    // Workers are killed when `DemoWorkers` is dropped, whatever ends the demo.
    let outcome = tokio::select! {
        biased;
        () = stop => Err(CommandFailure::result("stopped before the end, so there is no verdict")),
        outcome = Box::pin(perform(&stream, local.endpoint(), folder.path(), &options)) => outcome,
    };
    local.stop().await;
    let verdict = outcome?;
    print_line!("\n{verdict}");
    if verdict.holds() { Ok(()) } else { Err(CommandFailure::result("a guarantee was broken")) }
}

/// Runs the producer and the scenario concurrently, and then checks the result.
async fn perform(
    stream: &Arc<DemoStream>,
    endpoint: String,
    folder: &std::path::Path,
    options: &DemoOptions,
) -> Result<DemoVerdict, CommandFailure> {
    stream.create(SHARDS).await?;
    let deliveries = DeliveryLog::new(&folder.join("deliveries.log"))?;
    let mut fleet = DemoWorkers::new(endpoint, folder);
    let put = Arc::new(PutLog::default());
    let mut view = DemoView::new(crate::output::is_screen());
    view.log(&format!(
        "{SHARDS} shards, 3 workers, {} keys, {} records per second for {} s",
        options.keys, options.rate, options.seconds
    ));
    for _ in 0..3 {
        let name = fleet.start_worker()?;
        view.log(&format!("{name} starts, process {}", fleet.process_of(&name)));
    }
    fleet.until_shared(stream).await?;
    let scene = DemoContext { stream, deliveries: &deliveries, put: &put, options };
    let told = {
        let producing = produce::run(stream, options, &put);
        let (said, words) = tokio::sync::mpsc::channel(64);
        let acting = scenario::run(&scene, &mut fleet, said);
        let watching = watch(&scene, &mut view, words);
        tokio::select! {
            biased;
            result = async { tokio::try_join!(producing, acting) } => result?.1,
            failed = watching => return Err(failed),
        }
    };
    view.log(&format!("all {} records put; waiting for the last deliveries", put.accepted().len()));
    wait_for_the_rest(&scene, &mut view).await?;
    fleet.stop_all().await?;
    deliveries.read()?;
    view.close();
    Ok(DemoVerdict::of(&put.accepted(), put.failed(), &deliveries.all(), &told))
}

/// State shared by the parts of the demo.
struct DemoContext<'a> {
    stream: &'a DemoStream,
    deliveries: &'a DeliveryLog,
    put: &'a PutLog,
    options: &'a DemoOptions,
}

/// Refreshes the view until it is dropped or fails.
async fn watch(
    scene: &DemoContext<'_>,
    view: &mut DemoView,
    mut words: tokio::sync::mpsc::Receiver<String>,
) -> CommandFailure {
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            biased;
            Some(word) = words.recv() => view.log(&word),
            _ = ticks.tick() => {
                if let Err(failure) = view.refresh(scene).await {
                    return failure;
                }
                if output::is_unread() {
                    return CommandFailure::result("standard output was closed, so there is no \
                                                   verdict");
                }
            }
        }
    }
}

/// Waits until all accepted records were delivered, or for [`PATIENCE`].
async fn wait_for_the_rest(
    scene: &DemoContext<'_>,
    view: &mut DemoView,
) -> Result<(), CommandFailure> {
    let mut looks_left = PATIENCE.as_millis() / LOOK.as_millis();
    while looks_left > 0 && scene.deliveries.distinct() < scene.put.accepted().len() {
        view.refresh(scene).await?;
        tokio::time::sleep(LOOK).await;
        looks_left -= 1;
    }
    Ok(())
}
