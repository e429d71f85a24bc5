//! Workers as real processes against the local stream over HTTP: measures how fast shards change
//! owners, and the cost of an idle worker.
//!
//! Run by `cargo xtask bench consumer --times` and `--idle`.

mod worker;
mod stage;
mod times;
mod idle;

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the system has threads");
    if let Some(job) = worker::Job::from_env() {
        return runtime.block_on(worker::run(job));
    }
    // `cargo bench` adds this flag.
    let parts: Vec<String> = std::env::args().skip(1).filter(|part| part != "--bench").collect();
    let known = ["--times", "--idle"];
    if let Some(part) = parts.iter().find(|part| !known.contains(&part.as_str())) {
        eprintln!("error: there is no part {part:?}; the parts are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|it| it == part);
    let measured = runtime.block_on(async {
        if wanted("--times") {
            times::run().await?;
        }
        if wanted("--idle") {
            idle::run().await?;
        }
        Ok::<(), String>(())
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
