//! The library over a realistic network: TLS, HTTP/2, low limits, dead connections, slow
//! connections.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../network/mod.rs"]
mod network;
mod world;
mod subscriptions;
mod stream_limit;
mod silence;
mod goaway;
mod refused;
mod uploads;
mod pool;
