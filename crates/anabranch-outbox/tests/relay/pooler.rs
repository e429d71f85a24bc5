//! A relay behind a pooler in transaction mode whose connections are all in use.

use crate::postgres_server::bouncer::Bouncer;
use crate::world::RelayFixture;
use anabranch_outbox::{Database, Relay};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, Executor};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Number of relays started.
const RELAYS: u32 = 12;
/// Number of clients that keep the pooler's two connections busy.
const CLIENTS: u32 = 8;
/// Time limit for a relay to detect the pooler.
const FOUND_OUT: Duration = Duration::from_secs(20);

async fn use_always(url: String) {
    let options: PgConnectOptions = url.parse().unwrap();
    let options = options.extra_float_digits(None);
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    loop {
        connection.execute("SELECT pg_sleep(0.002)").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pooler_whose_connections_are_all_in_use_is_refused_too() {
    let Some(world) = RelayFixture::new().await else { return };
    let settings = "ignore_startup_parameters = extra_float_digits, options\n";
    let Some(bouncer) = Bouncer::start_with(0, settings) else { return };
    let url = bouncer.before(&world.url);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(use_always(url.clone()));
    }
    for relay in 0..RELAYS {
        let database = Database::from_url(&url).unwrap();
        let relay_there = Relay::new(database, world.table.clone(), crate::stage::STREAM);
        let api = world.stage.api();
        let run = Box::pin(relay_there.run(&api, CancellationToken::new()));
        let ended = tokio::time::timeout(FOUND_OUT, run).await;
        let refused = ended.unwrap_or_else(|_| panic!("relay {relay} runs behind the pooler"));
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("each transaction runs in another session"), "relay {relay}: {why}");
    }
}
