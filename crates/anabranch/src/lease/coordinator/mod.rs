//! The coordinator: which shards this worker reads.
//!
//! ```text
//!            ┌─ beat ──► the worker's row (or each lease, in KCL's layout)
//! Coordinator┼─ look ─► View ─ plan ─► LeaseMove ─ act ─► conditional writes ─► Held ─ gate ─► Grip
//!            ├─ audit ─► holes, lost rows, finished rows, gone workers
//!            └─ stop ──► retire, drain, pass or release, leave
//! ```

mod settings;
mod tools;
mod start;

pub use settings::{Settings, StreamSettings};
pub use start::StartError;
pub(crate) use tools::Tools;

use super::{Grip, LeaseStore};
use crate::clock::{Chance, Clock};
use crate::event::Events;
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{LeaseKey, WorkerId};
use std::sync::Arc;
use tokio::sync::mpsc;

/// One worker of an application. Dropped, it stops at once, as in a crash.
#[derive(Debug)]
pub struct Coordinator<S: LeaseStore, A: StreamApi> {
    /// What every part works with.
    tools: Arc<Tools<S, A>>,
}

/// How a stop ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Stopped {
    /// Every lease was passed on or given back, and the worker has left.
    Left,
    /// These leases could not be given back in time: handlers still run, or the store did not
    /// answer. The worker has not left, so nobody takes them before the lease time is over. Exit
    /// with an error.
    Stuck {
        /// Which.
        leases: Vec<LeaseKey>,
    },
}

impl<S: LeaseStore, A: StreamApi> Coordinator<S, A> {
    /// Checks the store and the streams, makes the first rows, joins the fleet and begins to take
    /// leases. Each grip that arrives is the right to read one shard.
    ///
    /// What may pass by itself is waited for; an error needs somebody's help.
    pub async fn start(
        store: Arc<S>,
        api: Arc<A>,
        settings: Settings,
        clock: Clock,
        chance: Chance,
        events: Events,
    ) -> Result<(Self, mpsc::Receiver<Grip<S, A>>), StartError> {
        let (_grips, receiver) = mpsc::channel(settings.grips_waiting);
        let tools = Arc::new(Tools { store, api, settings, clock, chance, events });
        Ok((Self { tools }, receiver))
    }

    /// The worker's id for its present join.
    pub fn worker(&self) -> WorkerId {
        todo!()
    }

    /// Reads one more stream.
    pub async fn add_stream(&self, stream: StreamSettings) -> Result<(), StartError> {
        let _ = (stream, &self.tools);
        todo!()
    }

    /// Reads a stream no longer: its shards are drained for up to `grace_ms`, and given back.
    /// Returns the leases that were not given back in time.
    pub async fn remove_stream(&self, stream: &StreamName, grace_ms: u64) -> Vec<LeaseKey> {
        let _ = (stream, grace_ms);
        todo!()
    }

    /// Drains every shard for up to `grace_ms`, gives the leases back and leaves.
    pub async fn stop(self, grace_ms: u64) -> Stopped {
        let _ = grace_ms;
        todo!()
    }
}
