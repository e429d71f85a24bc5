//! Events that came before: a bounded memory of their ids, for handlers that want each once.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Remembers the ids of the last events that were handled. Clones share one memory.
///
/// A sender that crashed between a put and its own note of it puts the event again, under the same
/// id; an outbox relay does. Ask before an event is handled, and remember it after: an event whose
/// handler failed comes again, and must not be taken for a repeat.
///
/// The memory ends with the process, and holds so many ids and no more: the oldest make way. Let it
/// hold at least as many as a sender may have under way at a time.
///
/// ```
/// use anabranch::consumer::Deduplicator;
///
/// let seen = Deduplicator::with_capacity(100_000);
/// let mut handled = Vec::new();
/// for (id, event) in [("1", "paid"), ("2", "sent"), ("1", "paid")] {
///     if !seen.contains(id) {
///         handled.push(event);
///         seen.insert(id);
///     }
/// }
/// assert_eq!(handled, ["paid", "sent"]);
/// ```
#[derive(Debug, Clone)]
pub struct Deduplicator(Arc<Mutex<DeduplicatorState>>);

#[derive(Debug)]
struct DeduplicatorState {
    /// The ids, to be found.
    ids: HashSet<Arc<str>>,
    /// The same ids, oldest first.
    order: VecDeque<Arc<str>>,
    /// How many there may be.
    bound: usize,
}

impl Deduplicator {
    /// Remembers this many ids, at least one.
    pub fn with_capacity(ids: usize) -> Self {
        let (bound, none) = (ids.max(1), HashSet::new());
        Self(Arc::new(Mutex::new(DeduplicatorState { ids: none, order: VecDeque::new(), bound })))
    }

    /// Whether an event of this id was handled.
    pub fn contains(&self, id: &str) -> bool {
        self.lock().ids.contains(id)
    }

    /// An event of this id was handled.
    pub fn insert(&self, id: impl Into<Arc<str>>) {
        let (id, mut memory) = (id.into(), self.lock());
        if !memory.ids.insert(Arc::clone(&id)) {
            return;
        }
        memory.order.push_back(id);
        if memory.order.len() > memory.bound {
            let oldest = memory.order.pop_front();
            oldest.map(|oldest| memory.ids.remove(&oldest));
        }
    }

    fn lock(&self) -> MutexGuard<'_, DeduplicatorState> {
        // A memory that lost a thread half-way only forgets an id.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_held_from_its_handling_until_newer_ones_take_its_place() {
        let repeats = Deduplicator::with_capacity(3);
        assert!(!repeats.contains("0"), "an event that was only asked for is no repeat");
        for id in ["0", "1", "2", "2", "2"] {
            repeats.insert(id);
        }
        assert!(repeats.contains("0"), "remembering an id again takes no place");
        repeats.clone().insert("3");
        let held: Vec<bool> = ["0", "1", "2", "3"].map(|id| repeats.contains(id)).to_vec();
        assert_eq!(held, [false, true, true, true]);
    }
}
