//! Tests of `anabranch relay` and its operator commands with a real PostgreSQL.

use crate::postgres_server::Server;
use crate::postgres_server::bouncer::Bouncer;
use crate::stage::{CommandFixture, CommandResult, RunningCommand, run, until};
use serde_json::Value;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

/// An empty database, and a stream.
struct RelayFixture {
    server: Arc<Server>,
    url: String,
    stage: CommandFixture,
}

impl RelayFixture {
    /// Returns `None` if PostgreSQL is not available.
    fn bare() -> Option<Self> {
        let server = Server::shared()?;
        let url = server.fresh_database();
        Some(Self { server, url, stage: CommandFixture::start(&["orders:1"]) })
    }

    /// Creates a database with an outbox.
    fn new() -> Option<Self> {
        let world = Self::bare()?;
        world.run("relay init").ok();
        Some(world)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = self.stage.command(words);
        command.env("DATABASE_URL", &self.url);
        command
    }

    fn run(&self, words: &str) -> CommandResult {
        run(self.command(words), "")
    }

    /// Starts a relay whose records contain only the rows' data.
    fn relay(&self) -> RunningCommand {
        let words = "relay --stream orders --format data --no-aggregation --poll 100ms";
        RunningCommand::start(self.command(words))
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(self.url.rsplit('/').next().unwrap(), sql)
    }

    fn insert(&self, key: &str, data: &str) {
        self.sql(&format!("INSERT INTO outbox (partition_key, data) VALUES ('{key}', '{data}')"));
    }

    /// Inserts a row that no stream accepts.
    fn insert_bad(&self, key: &str, data: &str) {
        self.sql(&format!(
            "INSERT INTO outbox (partition_key, explicit_hash_key, data) \
             VALUES ('{key}', 'x', '{data}')"
        ));
    }

    #[track_caller]
    fn until_stored(&self, expected: &[&str]) {
        until(&format!("{expected:?}"), || self.stage.stored("orders") == expected);
    }

    #[track_caller]
    fn until_parked(&self, keys: usize) {
        until("a parked key", || {
            let status: Value = serde_json::from_str(&self.run("relay status --json").out).unwrap();
            status["parked"].as_array().unwrap().len() == keys
        });
    }
}

#[test]
fn init_prints_what_it_would_run_and_makes_what_is_missing() {
    let Some(world) = RelayFixture::bare() else { return };
    let mut alone = crate::stage::program();
    alone.args(["relay", "init", "--print"]);
    let script = run(alone, "").ok().out;
    assert_eq!(world.run("relay init --print").ok().out, script);
    assert_eq!(world.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "0");
    let made = world.run("relay init").ok();
    assert!(made.err.contains("public.outbox is ready"), "{made:?}");
    let again = world.run("relay init").ok();
    assert!(again.err.contains("nothing was missing"), "{again:?}");
    assert_eq!(world.run("relay init --print").ok().out, "");
    // An operator can run the printed script.
    let other = RelayFixture { url: world.server.fresh_database(), ..world };
    other.sql(&script);
    let again = other.run("relay init").ok();
    assert!(again.err.contains("nothing was missing"), "{again:?}");
}

#[test]
fn rows_are_carried_until_the_relay_is_asked_to_stop() {
    let Some(world) = RelayFixture::new() else { return };
    world.insert("a", "1");
    let status = world.run("relay status").ok();
    assert!(status.out.contains("1 row waits") && status.out.contains("no relay"), "{status:?}");
    let relay = world.relay();
    world.insert("a", "2");
    world.until_stored(&["1", "2"]);
    until("an empty table", || world.sql("SELECT count(*) FROM outbox") == "0");
    let status = world.run("relay status --json").ok();
    let status: Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!((&status["waiting_rows"], &status["table"]), (&0.into(), &"public.outbox".into()));
    assert!(status["relay_pid"].is_number(), "{status}");
    let ran = relay.stop().ok();
    assert!(ran.err.contains("relaying public.outbox"), "{ran:?}");
    assert!(ran.err.contains("sent 2 rows of public.outbox to orders"), "{ran:?}");
}

#[test]
fn a_table_of_ones_own_is_carried_and_its_rows_may_stay() {
    let Some(world) = RelayFixture::bare() else { return };
    world.sql(
        "CREATE TABLE events (no bigserial PRIMARY KEY, customer text NOT NULL, body text NOT NULL); \
         INSERT INTO events (customer, body) VALUES ('c', 'one'), ('c', 'two')",
    );
    let of = "--table events --columns id=no,partition_key=customer,data=body --keep";
    world.run(&format!("relay init {of}")).ok();
    let words = format!("relay {of} --stream orders --format data --no-aggregation");
    let relay = RunningCommand::start(world.command(&words));
    world.until_stored(&["one", "two"]);
    until("marks", || world.sql("SELECT count(*) FROM events WHERE sent_at IS NULL") == "0");
    relay.stop().ok();
    assert_eq!(world.sql("SELECT count(*) FROM events"), "2");
}

#[test]
fn a_parked_key_is_shown_skipped_and_retried() {
    let Some(world) = RelayFixture::new() else { return };
    world.insert_bad("a", "1");
    world.insert("a", "2");
    world.insert("b", "3");
    let relay = world.relay();
    world.until_stored(&["3"]);
    world.until_parked(1);
    let status = world.run("relay status");
    assert_eq!(status.code, Some(1), "{status:?}");
    assert!(status.out.contains("blocked at row 1") && status.out.contains("\"a\""), "{status:?}");
    assert!(status.err.contains("1 key is blocked"), "{status:?}");
    for (words, expected) in [
        ("relay skip 2", "no key of public.outbox is blocked at row 2"),
        ("relay retry b", "key \"b\" of public.outbox is not blocked"),
    ] {
        let ran = world.run(words);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(expected) && ran.err.contains("relay status"), "{ran:?}");
    }
    let ran = world.run("relay skip 1").ok();
    assert!(ran.err.contains("row 1 was removed unsent"), "{ran:?}");
    world.until_stored(&["3", "2"]);

    world.insert_bad("a", "4");
    world.until_parked(1);
    world.sql("UPDATE outbox SET explicit_hash_key = NULL");
    let ran = world.run("relay retry a").ok();
    assert!(ran.err.contains("resumes with row 4"), "{ran:?}");
    world.until_stored(&["3", "2", "4"]);

    world.insert_bad("a", "5");
    world.insert_bad("b", "6");
    world.until_parked(2);
    world.sql("UPDATE outbox SET explicit_hash_key = NULL");
    let ran = world.run("relay retry --all").ok();
    assert!(ran.err.contains("2 blocked rows are retried"), "{ran:?}");
    until("both rows", || world.stage.stored("orders").len() == 5);
    let ran = relay.stop().ok();
    assert!(ran.err.contains("row 1 can't be sent, so its key \"a\" is blocked"), "{ran:?}");
}

#[test]
fn a_relay_that_is_killed_is_followed_by_the_one_that_waits() {
    let Some(world) = RelayFixture::new() else { return };
    let mut first = world.relay();
    world.insert("a", "1");
    world.until_stored(&["1"]);
    let second = world.relay();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    world.insert("a", "2");
    until("the second row", || world.stage.stored("orders").contains(&"2".to_owned()));
    second.stop().ok();
}

#[test]
fn each_mistake_gets_one_line_with_the_way_out() {
    let Some(world) = RelayFixture::new() else { return };
    let (name, port) = (world.url.rsplit('/').next().unwrap().to_owned(), world.server.port());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    world.sql(&format!("CREATE ROLE guest_{name} LOGIN PASSWORD 'x'"));
    world.sql("CREATE TABLE plain (id bigserial PRIMARY KEY, partition_key text, data bytea)");
    let at = |who: &str, port: u16, name: &str| format!("postgres://{who}@127.0.0.1:{port}/{name}");
    let relay = "relay --stream orders";
    for (url, words, expected) in [
        (String::new(), relay, &["postgres://user:password@host:port/database"][..]),
        ("mysql://me:hunter2@host/db".to_owned(), relay, &["postgres://"]),
        (at("tester:x", nobody, &name), relay, &["could not connect", "host and port"]),
        (at("tester:hunter2", port, &name), relay, &["user and password"]),
        (world.url.replace(&name, "nowhere"), relay, &["nowhere", "check its name"]),
        (world.url.clone(), "relay --stream ordres", &["stream ordres does not exist"]),
        (
            world.url.clone(),
            "relay --stream orders --table nothing",
            &["public.nothing", "no such table", "relay init"],
        ),
        (
            world.url.clone(),
            "relay --stream orders --table plain",
            &["public.plain", "column transaction_id is missing", "relay init"],
        ),
        (
            world.url.clone(),
            "relay --stream orders --columns id=number",
            &["column number is missing", "--columns"],
        ),
        (world.url.clone(), "relay --stream orders --columns key=k", &["partition_key"]),
        (
            at(&format!("guest_{name}:x"), port, &name),
            relay,
            &["may not SELECT", "GRANT SELECT ON \"public\".\"outbox\""],
        ),
        (
            at(&format!("guest_{name}:x"), port, &name),
            "relay init --table mine",
            &["permission denied", "--print"],
        ),
        (world.url.clone(), "relay status --table nothing", &["public.nothing", "relay init"]),
        (world.url.clone(), "relay skip 1 --table nothing", &["nothing_parked", "relay init"]),
        (world.url.clone(), "relay retry k --table nothing", &["nothing_parked", "relay init"]),
        (world.url.clone(), "relay retry", &["<KEY>"]),
        (world.url.clone(), "relay", &["--stream"]),
    ] {
        let mut command = world.stage.command(words);
        command.env("DATABASE_URL", &url);
        let ran = run(command, "");
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
        assert_eq!(ran.err.trim().lines().count(), 1, "{words}: {ran:?}");
        assert_eq!(ran.out, "", "{words}: {ran:?}");
        for part in expected {
            assert!(ran.err.contains(part), "{words}: {part:?} is not in {ran:?}");
        }
        assert!(!ran.err.contains("hunter2") && !ran.err.contains(Server::password()), "{ran:?}");
    }
    let mut command = world.stage.command(relay);
    command.env_remove("DATABASE_URL");
    let ran = run(command, "");
    assert!(ran.code == Some(2) && ran.err.contains("DATABASE_URL"), "{ran:?}");
}

#[test]
fn a_pooler_in_transaction_mode_is_refused_with_the_way_out() {
    let Some(mut world) = RelayFixture::new() else { return };
    let direct = world.url.clone();
    // By default it rejects the relay's settings; configured to ignore them, it pools sessions.
    for more in ["", "ignore_startup_parameters = extra_float_digits, options\n"] {
        let Some(bouncer) = Bouncer::start_with(0, more) else { return };
        world.url = bouncer.before(&direct);
        let ran = world.run("relay --stream orders");
        assert_ne!(ran.code, Some(0), "{more}");
        assert!(ran.err.contains("a pool in session mode"), "{more}: {}", ran.err);
    }
    world.url = direct;
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid
        WHERE locktype = 'advisory' AND datname = current_database()";
    assert_eq!(world.sql(locks), "0");
}
