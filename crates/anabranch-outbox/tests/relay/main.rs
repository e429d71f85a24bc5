//! The relay against a real PostgreSQL and a local stream: no row skipped, every key in order.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../../anabranch/tests/postgres_server/mod.rs"]
mod postgres_server;
#[path = "../../../anabranch/tests/producer/stage.rs"]
#[allow(dead_code, reason = "the producer's tests use the rest")]
mod stage;
mod world;
mod valve;
mod child;
mod order;
mod parking;
mod restored;
mod leading;
mod cut_off;
mod denied;
mod repeats;
mod figures;
mod tables;
mod backlog;
mod storm;
mod pooler;
