//! A worker in a process of its own: this test binary again, told by its environment to read.

use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::SqliteStore;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;

/// The file of leases; only the child's environment has it.
pub(crate) const LEASES: &str = "ANABRANCH_TEST_LEASES";
/// The file that all workers write their deliveries to, so that there is one order of them.
pub(crate) const LOG: &str = "ANABRANCH_TEST_LOG";
/// The worker's name, which stands behind each of its deliveries.
pub(crate) const NAME: &str = "ANABRANCH_TEST_NAME";
/// The stream to read.
pub(crate) const STREAM: &str = "ANABRANCH_TEST_STREAM";

/// Runs in the child only: writes each record down, and ends as the consumer does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Ok(leases), Ok(stream)) = (std::env::var(LEASES), std::env::var(STREAM)) else { return };
    let log = OpenOptions::new().append(true).create(true).open(std::env::var(LOG).unwrap());
    let (log, name) = (Arc::new(log.unwrap()), std::env::var(NAME).unwrap());
    let kinesis = anabranch::stream::aws::from_env().await.unwrap();
    let ended = Consumer::new(stream, "end-to-end")
        .with_kinesis(kinesis)
        .with_leases(SqliteStore::open(leases, "end-to-end").unwrap())
        .with_settings(|settings| settings.lease_time = 3_000)
        .each(move |record: Delivery| {
            let (key, data) = (&record.partition_key, record.data.escape_ascii());
            // One write, so that a line is never cut by a kill.
            let written = (&*log).write_all(format!("{key} {data} {name}\n").as_bytes());
            std::future::ready(written.map_err(HandlerError::from))
        })
        .run()
        .await;
    let code = match ended {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            3
        }
    };
    std::process::exit(code);
}
