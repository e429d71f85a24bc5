//! The examples, each as a process: they print every record, each key in order, and stop
//! gracefully.

use crate::fleet::{KEYS, ProcessFleet};
use crate::network::Transport;
use anabranch::consumer::{Consumer, Delivery, HandlerError, RunError};
use anabranch::lease::SqliteStore;
use std::collections::BTreeMap;
use std::time::Duration;

#[expect(dead_code, reason = "its main function is for cargo")]
#[path = "../../examples/exactly_once.rs"]
mod exactly_once;
#[expect(dead_code, reason = "its main function is for cargo")]
#[path = "../../examples/hello_consumer.rs"]
mod hello_consumer;
#[expect(dead_code, reason = "its main function is for cargo")]
#[path = "../../examples/shard_processor.rs"]
mod shard_processor;
#[expect(dead_code, reason = "its main function is for cargo")]
#[path = "../../examples/shard_streams.rs"]
mod shard_streams;
#[expect(dead_code, reason = "its main function is for cargo")]
#[path = "../../examples/tail.rs"]
mod tail;

/// The example to run; set only in the child's environment.
const EXAMPLE: &str = "ANABRANCH_TEST_EXAMPLE";

/// Runs in the child only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(example) = std::env::var(EXAMPLE) else { return };
    let ended = match example.as_str() {
        "hello_consumer" => Box::pin(hello_consumer::read("orders")).await,
        "shard_processor" => Box::pin(shard_processor::read("orders")).await,
        "shard_streams" => Box::pin(shard_streams::read("orders")).await,
        "exactly_once" => Box::pin(exactly_once::read("orders")).await,
        "tail" => Box::pin(tail::read("orders")).await.map_err(|error| error.to_string().into()),
        "stubborn" => Box::pin(stubborn()).await,
        other => panic!("{other}"),
    };
    let code = match ended {
        Ok(()) => 0,
        Err(error) if error.downcast_ref::<RunError>().is_some_and(forced) => 9,
        Err(error) => {
            eprintln!("{error}");
            3
        }
    };
    std::process::exit(code);
}

fn forced(error: &RunError) -> bool {
    matches!(error, RunError::Forced)
}

/// Runs a consumer whose handler never ends.
async fn stubborn() -> Result<(), HandlerError> {
    let kinesis = anabranch::stream::aws::from_env().await?;
    Consumer::new("orders", "stubborn")
        .with_kinesis(kinesis)
        .with_leases(SqliteStore::open("stubborn.db", "stubborn")?)
        .with_settings(|settings| settings.grace_period = Duration::from_mins(10))
        .each(|record: Delivery| async move {
            println!("{} {}: {}", record.shard, record.partition_key, record.data.escape_ascii());
            std::future::pending::<Result<(), HandlerError>>().await
        })
        .run()
        .await?;
    Ok(())
}

/// Returns the records that a child has printed: key and number.
fn printed(fleet: &ProcessFleet, name: &str) -> Vec<(String, usize)> {
    let text = fleet.printed(name);
    let record = |line: &str| {
        let (place, number) = line.split_once(": ")?;
        let (_, key) = place.rsplit_once(' ')?;
        Some((key.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(record).collect()
}

async fn until_printed(fleet: &ProcessFleet, name: &str, count: usize) {
    for _ in 0..600 {
        if printed(fleet, name).len() >= count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{name} printed {} of {count}", printed(fleet, name).len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_prints_each_key_in_order_through_a_split() {
    let mut fleet = ProcessFleet::start(Transport::Http, 2).await;
    let names = ["hello_consumer", "shard_processor", "shard_streams", "exactly_once", "tail"];
    for name in names {
        fleet.spawn_printing(name, "examples::child", &[(EXAMPLE, name.to_owned())]);
    }
    // The tail starts at the next record, so it must be running before any is put.
    let mut first = 0;
    while printed(&fleet, "tail").is_empty() {
        fleet.rounds(1).await;
        first += 1;
    }
    fleet.rounds(5).await;
    fleet.split(0).await;
    fleet.rounds(5).await;
    let rounds = first + 10;
    for name in names.into_iter().filter(|name| *name != "tail") {
        until_printed(&fleet, name, rounds * KEYS).await;
        fleet.signal(name, "INT");
        assert_eq!(fleet.exit_of(name), Some(0), "{name} stops in order");
    }
    until_printed(&fleet, "tail", 10 * KEYS).await;
    for name in names {
        let mut next: BTreeMap<String, usize> = BTreeMap::new();
        for (key, number) in printed(&fleet, name) {
            let next = next.entry(key.clone()).or_insert(if name == "tail" { number } else { 0 });
            assert_eq!(number, *next, "{name}: {key}");
            *next += 1;
        }
        assert!(next.values().all(|count| *count == rounds), "{name}: {next:?} of {rounds}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_consumer_whose_handler_does_not() {
    let mut fleet = ProcessFleet::start(Transport::Http, 1).await;
    fleet.rounds(1).await;
    fleet.spawn_printing("one", "examples::child", &[(EXAMPLE, "stubborn".to_owned())]);
    until_printed(&fleet, "one", 1).await;
    fleet.signal("one", "TERM");
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(fleet.runs("one"), "its grace period is ten minutes");
    fleet.signal("one", "TERM");
    assert_eq!(fleet.exit_of("one"), Some(9), "it was forced");
}
