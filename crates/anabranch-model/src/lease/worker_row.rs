//! The row of a worker: its heart.

use super::write::Nonce;
use crate::ids::StreamName;
use std::fmt;
use std::sync::Arc;

/// Who holds leases: a name and 64 random bits, drawn anew at each join. Cheap to clone.
///
/// A worker whose beat was refused never comes back under its old id: what it sent under that id
/// may still arrive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Arc<str>);

/// In the ids of workers that hand leases of KCL's table over when they are asked: the lease time
/// in milliseconds follows.
const HANDS_OVER: &str = "+h";

impl WorkerId {
    /// The id of the worker `name` for one join.
    pub fn of_join(name: &str, random: u64) -> Self {
        Self(format!("{name}/{random:016x}").into())
    }

    /// The id of the worker `name` for one join, where leases are in KCL's table. It says that its
    /// worker hands leases over, and its lease time. It goes with the lease: a worker of Java that
    /// takes one writes an id of its own, and nothing has to be removed.
    pub fn of_kcl_join(name: &str, random: u64, lease_time_ms: u64) -> Self {
        Self(format!("{name}/{random:016x}{HANDS_OVER}{lease_time_ms}").into())
    }

    /// Whether the worker hands a lease of KCL's table over when it is asked. From any other worker
    /// a lease is stolen, as KCL does.
    pub fn supports_hand_over(&self) -> bool {
        self.kcl_lease_time_ms().is_some()
    }

    /// In KCL's layout: for how long the worker may be silent. `None` for a worker that does not say
    /// so, such as one of Java: watchers then go by their own lease time.
    pub fn kcl_lease_time_ms(&self) -> Option<u64> {
        let (join, lease_time_ms) = self.0.rsplit_once(HANDS_OVER)?;
        let (_, random) = join.rsplit_once('/')?;
        let is_ours = random.len() == 16 && random.bytes().all(|digit| digit.is_ascii_hexdigit());
        let digits = lease_time_ms.bytes().all(|digit| digit.is_ascii_digit());
        lease_time_ms.parse().ok().filter(|_| is_ours && digits)
    }

    /// The id as it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An id as a store or another fleet's worker wrote it.
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

/// What is stored for one worker. Only the native layout has such rows.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct WorkerRow {
    /// Who it is, for one join.
    pub id: WorkerId,
    /// Moved by each of its beats. A watcher that sees it stand still for the worker's lease time
    /// may fence.
    pub counter: u64,
    /// Whether its beats still count.
    pub state: WorkerState,
    /// Where it runs, for operators.
    pub host: String,
    /// When it joined by its own clock, in milliseconds since 1970, for operators.
    pub started_ms: u64,
    /// The streams that it reads, by name. `None` if it did not say: then it counts as a reader of
    /// all.
    pub reads: Option<Vec<StreamName>>,
    /// For how long it may be silent, in milliseconds. `None` on a row of an older version: watchers
    /// then go by their own lease time.
    pub lease_time_ms: Option<u64>,
    /// The nonce of the last write to this row.
    pub nonce: Nonce,
}

impl WorkerRow {
    /// Whether its beats still count.
    pub fn is_alive(&self) -> bool {
        self.state != WorkerState::Fenced
    }
}

/// Whether a worker's beats still count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WorkerState {
    /// It may hold leases as long as it beats.
    Alive,
    /// It is stopping: it beats on until it has given back its leases, and takes no more.
    Leaving,
    /// It was shut out by a watcher, or it left. Its leases are free, and no beat brings it back.
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
