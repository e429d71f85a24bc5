//! The row of a worker, which contains its heartbeat.

use super::write::Nonce;
use crate::ids::StreamName;
use std::fmt;
use std::sync::Arc;

/// Worker id: a name and 64 random bits, new at each join. Cheap to clone.
///
/// A worker whose heartbeat was refused never continues under its old id, because its earlier
/// writes under that id may still arrive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Arc<str>);

/// Marks the ids of workers that support hand-over of leases in KCL's table. The lease time in
/// milliseconds follows.
const HANDS_OVER: &str = "+h";

impl WorkerId {
    /// Creates the id of the worker `name` for one join.
    pub fn of_join(name: &str, random: u64) -> Self {
        Self(format!("{name}/{random:016x}").into())
    }

    /// Creates the id of the worker `name` for one join, for leases in KCL's table. It states that
    /// the worker supports hand-over, and its lease time. The marker needs no cleanup: a Java
    /// worker that takes the lease writes its own id.
    pub fn of_kcl_join(name: &str, random: u64, lease_time_ms: u64) -> Self {
        Self(format!("{name}/{random:016x}{HANDS_OVER}{lease_time_ms}").into())
    }

    /// Returns true if the worker hands a lease in KCL's table over on request. Leases of other
    /// workers are stolen, as KCL does.
    pub fn supports_hand_over(&self) -> bool {
        self.kcl_lease_time_ms().is_some()
    }

    /// Returns the lease time in an id of KCL's layout, in milliseconds. Returns `None` for a
    /// worker without one, such as a Java worker: watchers then use their own lease time.
    pub fn kcl_lease_time_ms(&self) -> Option<u64> {
        let (join, lease_time_ms) = self.0.rsplit_once(HANDS_OVER)?;
        let (_, random) = join.rsplit_once('/')?;
        let is_ours = random.len() == 16 && random.bytes().all(|digit| digit.is_ascii_hexdigit());
        let digits = lease_time_ms.bytes().all(|digit| digit.is_ascii_digit());
        lease_time_ms.parse().ok().filter(|_| is_ours && digits)
    }

    /// Returns the id as it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Wraps an id as read from a store.
impl From<&str> for WorkerId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for WorkerId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The row of a worker. Only the native layout has such rows.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct WorkerRow {
    /// Id of the worker, for one join.
    pub id: WorkerId,
    /// Heartbeat counter. A watcher that sees it unchanged for the worker's lease time may fence
    /// the worker.
    pub counter: u64,
    /// State of the worker.
    pub state: WorkerState,
    /// Host of the worker, for operators.
    pub host: String,
    /// Join time by the worker's clock, in milliseconds since the Unix epoch, for operators.
    pub started_ms: u64,
    /// Names of the streams that it reads. `None` counts as all streams.
    pub reads: Option<Vec<StreamName>>,
    /// Maximum time without a heartbeat, in milliseconds. `None` on a row of an older version:
    /// watchers then use their own lease time.
    pub lease_time_ms: Option<u64>,
    /// Nonce of the last write to this row.
    pub nonce: Nonce,
}

impl WorkerRow {
    /// Returns true if the worker is not fenced, so that its heartbeats count.
    pub fn is_alive(&self) -> bool {
        self.state != WorkerState::Fenced
    }
}

/// State of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WorkerState {
    /// It may own leases as long as it sends heartbeats.
    Alive,
    /// It is stopping: it sends heartbeats until it has released its leases, and takes no more.
    Leaving,
    /// It was fenced by a watcher, or it left. Its leases are free, and no heartbeat brings it
    /// back.
    Fenced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_our_own_joins_say_that_their_worker_hands_over() {
        let ours = WorkerId::of_kcl_join("orders/7", 1, 10_000);
        assert_eq!((ours.supports_hand_over(), ours.kcl_lease_time_ms()), (true, Some(10_000)));
        assert!(!WorkerId::of_join("orders", 1).supports_hand_over());
        for other in [
            "",
            "+h",
            "host+h1",
            "host/1+h1",
            "host/0000000000000001+h",
            "host/0000000000000001+h+5",
            "host/0000000000000001+h99999999999999999999",
            "ip-10-0-0-7:5b1a3c5e-1f04-4a6b-9c6d-3f1f0d1b2c3d",
        ] {
            assert!(!WorkerId::from(other).supports_hand_over(), "{other}");
        }
    }
}
