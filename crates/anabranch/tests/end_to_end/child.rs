//! A worker in a process of its own: this test binary, with environment variables that make it
//! read.

use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::SqliteStore;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// The file of leases; set only in the child's environment.
pub(crate) const LEASES: &str = "ANABRANCH_TEST_LEASES";
/// The file to which all workers write their deliveries, so that they have one order.
pub(crate) const LOG: &str = "ANABRANCH_TEST_LOG";
/// The worker's name, which is written after each of its deliveries.
pub(crate) const NAME: &str = "ANABRANCH_TEST_NAME";
/// The stream to read.
pub(crate) const STREAM: &str = "ANABRANCH_TEST_STREAM";

/// Runs in the child only: logs each record, and ends as the consumer does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Ok(leases), Ok(stream)) = (std::env::var(LEASES), std::env::var(STREAM)) else { return };
    let log = OpenOptions::new().append(true).create(true).open(std::env::var(LOG).unwrap());
    let (log, name) = (Arc::new(log.unwrap()), std::env::var(NAME).unwrap());
    let kinesis = anabranch::stream::aws::from_env().await.unwrap();
    let ended = Consumer::new(stream, "end-to-end")
        .with_kinesis(kinesis)
        .with_leases(SqliteStore::open(leases, "end-to-end").unwrap())
        .with_settings(|settings| settings.lease_time = Duration::from_secs(3))
        .each(move |record: Delivery| {
            let (key, data) = (&record.partition_key, record.data.escape_ascii());
            // One write, so that a kill never truncates a line.
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
