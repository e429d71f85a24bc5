//! End-to-end tests of the `anabranch` program: real processes, over HTTP.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

#[path = "../../../anabranch/tests/postgres_server/mod.rs"]
mod postgres_server;
mod stage;
mod ready;
mod local_tls;
mod region;
mod output;
mod killed;
mod full_disk;
mod wrong;
mod denied;
mod proxies;
mod put;
mod consume;
mod stops;
mod waits;
mod redrive;
mod tail;
mod leases;
mod several_streams;
mod databases;
mod doctor;
mod names;
mod relay;
mod multilang;
mod mock;
mod snapshots;
mod demo;
mod shell;
