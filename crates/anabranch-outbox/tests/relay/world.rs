//! Fixture: a database with an outbox, a stream, and relays between them.

use crate::postgres_server::Server;
use crate::stage::{ProducerFixture, STREAM};
use anabranch::event::{Event, Events, ProducerEvent, RelayEvent};
use anabranch::stream::api::StreamApi;
use anabranch_outbox::{Database, Envelope, OutboxTable, Relay, RelayError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Number of polls before a wait fails. Long enough for any machine; only a failing test waits that
/// long.
const LOOKS: u32 = 6_000;
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct RelayFixture {
    pub(crate) server: Arc<Server>,
    pub(crate) url: String,
    pub(crate) stage: ProducerFixture,
    pub(crate) table: OutboxTable,
}

impl RelayFixture {
    /// Creates a database with an outbox made by `init`. Returns `None` if PostgreSQL is not
    /// available.
    pub(crate) async fn new() -> Option<Self> {
        let world = Self::bare()?;
        anabranch_outbox::init(&world.database(), &world.table, false).await.unwrap();
        Some(world)
    }

    /// Creates an empty database.
    pub(crate) fn bare() -> Option<Self> {
        let server = Server::shared()?;
        let url = server.fresh_database();
        Some(Self {
            server,
            url,
            stage: ProducerFixture::new(2),
            table: OutboxTable::named("outbox").unwrap(),
        })
    }

    pub(crate) fn database(&self) -> Database {
        Database::from_url(&self.url).unwrap()
    }

    /// Opens a session of the application.
    pub(crate) async fn session(&self) -> AppSession {
        let options: PgConnectOptions = self.url.parse().unwrap();
        AppSession(PgConnection::connect_with(&options).await.unwrap())
    }

    pub(crate) fn relay(&self) -> Relay {
        Relay::new(self.database(), self.table.clone(), STREAM)
            .with_poll(Duration::from_millis(100))
            .with_producer(|producer| producer.with_linger(Duration::ZERO))
    }

    /// Starts a relay.
    pub(crate) fn start(&self, relay: Relay) -> RunningRelay {
        Self::start_on(relay, self.stage.api())
    }

    /// Starts a relay with its own stream client.
    pub(crate) fn start_on<A: StreamApi + Clone>(relay: Relay, api: A) -> RunningRelay {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let paused = Arc::new(Mutex::new(Vec::new()));
        let (listener, causes) = (Arc::clone(&heard), Arc::clone(&paused));
        let relay = relay.with_events(Events::new(move |event| match event {
            Event::Relay(event) => listener.lock().unwrap().push(event.clone()),
            Event::Producer(ProducerEvent::Paused { detail, .. }) => {
                causes.lock().unwrap().push(detail.to_string());
            }
            _ => {}
        }));
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let stopped = stop.clone();
        task.spawn(async move { relay.run(&api, stopped).await });
        RunningRelay { stop, task, heard, paused }
    }

    /// Returns every event in the stream as `key data`, shard by shard.
    pub(crate) async fn delivered(&self) -> Vec<String> {
        let records = self.stage.read_all().await;
        let read = |record: &anabranch_model::record::UserRecord| {
            let data = Envelope::read(&record.data).unwrap().data;
            format!("{} {}", record.partition_key, String::from_utf8_lossy(&data))
        };
        records.iter().map(read).collect()
    }

    /// Returns the events of one key, in order.
    pub(crate) async fn delivered_of(&self, key: &str) -> Vec<String> {
        let all = self.delivered().await;
        let of = |line: String| line.strip_prefix(&format!("{key} ")).map(str::to_owned);
        all.into_iter().filter_map(of).collect()
    }

    /// Waits until the stream has at least `count` events.
    pub(crate) async fn until_delivered(&self, count: usize) {
        for _ in 0..LOOKS {
            if self.stage.read_all().await.len() >= count {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("only {:?} came", self.delivered().await);
    }

    /// Waits until the table is empty.
    pub(crate) async fn until_empty(&self) {
        let mut session = self.session().await;
        for _ in 0..LOOKS {
            if session.number("SELECT count(*) FROM outbox").await == 0 {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("rows stay in the table");
    }
}

/// A session of the application.
pub(crate) struct AppSession(pub(crate) PgConnection);

impl AppSession {
    pub(crate) async fn run(&mut self, sql: &str) {
        self.0.execute(AssertSqlSafe(sql)).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Drops the table that references the outbox. Locks are taken in the relay's order, the outbox
    /// first; the opposite order would deadlock.
    pub(crate) async fn drop_notes(&mut self) {
        for sql in ["BEGIN", "LOCK TABLE outbox", "DROP TABLE notes", "COMMIT"] {
            self.run(sql).await;
        }
    }

    /// Inserts an event.
    pub(crate) async fn insert(&mut self, key: &str, data: &str) {
        self.run(&format!("INSERT INTO outbox (partition_key, data) VALUES ('{key}', '{data}')"))
            .await;
    }

    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.0).await.unwrap()
    }
}

/// A running relay. Dropping it ends it at once, as in a crash.
pub(crate) struct RunningRelay {
    stop: CancellationToken,
    task: JoinSet<Result<(), RelayError>>,
    heard: Arc<Mutex<Vec<RelayEvent>>>,
    paused: Arc<Mutex<Vec<String>>>,
}

impl RunningRelay {
    /// Waits for an event.
    pub(crate) async fn until(&self, what: &str, is_it: impl Fn(&RelayEvent) -> bool) {
        for _ in 0..LOOKS {
            if self.heard.lock().unwrap().iter().any(&is_it) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{what} was not heard of, but {:?}", self.heard.lock().unwrap());
    }

    /// Waits until its producer is paused, and returns the reason.
    pub(crate) async fn until_paused(&self) -> String {
        for _ in 0..LOOKS {
            if let Some(why) = self.paused.lock().unwrap().last() {
                return why.clone();
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("the producer was not paused, but {:?}", self.heard.lock().unwrap());
    }

    pub(crate) fn has_heard(&self, is_it: impl Fn(&RelayEvent) -> bool) -> bool {
        self.heard.lock().unwrap().iter().any(is_it)
    }

    /// Stops it as an operator does.
    pub(crate) async fn stop(mut self) -> Result<(), RelayError> {
        self.stop.cancel();
        self.task.join_next().await.unwrap().unwrap()
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(mut self) -> Result<(), RelayError> {
        self.task.join_next().await.unwrap().unwrap()
    }
}
