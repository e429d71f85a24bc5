//! KCL multi-language daemon without a JVM.
//!
//! ```text
//! properties file ─► properties ─► config ─┬─► credentials, endpoints ─► Kinesis, leases
//!                                          └─► daemon ─► Consumer ─► processor ─► child
//!                                                           protocol, session ◄──────┘
//! ```

pub mod properties;
pub mod config;
pub mod credentials;
pub mod protocol;
pub mod session;
pub mod process_group;
mod child_registry;
pub mod child;
mod reaper;
mod processor;
mod event_log;
mod daemon;

pub use daemon::{Daemon, DaemonError};
