//! Cost of an idle worker with a hundred shards.

use crate::stage::WorkerFixture;
use std::time::Duration;

const SHARDS: i64 = 100;
/// Time until the worker has taken its shards and polls at its slowest rate.
const SETTLE: Duration = Duration::from_secs(15);
const MEASURE: Duration = Duration::from_secs(30);
/// The kernel's clock ticks per second.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) async fn run() -> Result<(), String> {
    println!("an idle worker with {SHARDS} shards, polling:");
    measure("a thread of the runtime for each core", None).await?;
    measure("one thread", Some(1)).await?;
    println!("(aim: 40 MiB and 2 %; KCL 288-371 MiB and 22 %, kcl-rs 103 MiB and 5 %)");
    Ok(())
}

async fn measure(how: &str, threads: Option<usize>) -> Result<(), String> {
    let mut stage = WorkerFixture::new(SHARDS).await?;
    stage.spawn_with("a", threads)?;
    tokio::time::sleep(SETTLE).await;
    let pid = stage.pid("a");
    let before = ticks(pid)?;
    tokio::time::sleep(MEASURE).await;
    let share = (ticks(pid)? - before) / TICKS_PER_SECOND / MEASURE.as_secs_f64() * 100.0;
    let rss = rss_mib(pid)?;
    println!("  {how:<40}{rss:>4.0} MiB, {share:.1} % of a core");
    stage.close().await.map(drop)
}

fn ticks(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // The process name may contain spaces; it ends with the last parenthesis.
    let rest = text.rsplit(')').next().unwrap_or_default();
    let field = |at: usize| rest.split_whitespace().nth(at).and_then(|f| f.parse::<f64>().ok());
    match (field(11), field(12)) {
        (Some(user), Some(system)) => Ok(user + system),
        _ => Err(format!("{path} has no CPU times")),
    }
}

fn rss_mib(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0).ok_or_else(|| format!("{path} has no VmRSS"))
}
