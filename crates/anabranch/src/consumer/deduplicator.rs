//! A bounded, in-memory set of recently handled event ids, for handlers that drop duplicates.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Remembers the ids of recently handled events. Clones share the same memory.
///
/// A sender that crashes between a put and recording it puts the event again under the same id; an
/// outbox relay does so. Call [`contains`](Self::contains) before handling an event and
/// [`insert`](Self::insert) afterwards. An event whose handler failed is redelivered and must not
/// count as a duplicate.
///
/// The memory is lost when the process ends. It holds a fixed number of ids and evicts the oldest
/// first. Choose a capacity of at least the number of events that a sender may have in flight.
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
    /// Ids for lookup.
    ids: HashSet<Arc<str>>,
    /// The same ids in insertion order, oldest first.
    order: VecDeque<Arc<str>>,
    /// Maximum number of ids; at least 1.
    bound: usize,
}

impl Deduplicator {
    /// Creates a memory for `ids` ids; 0 counts as 1.
    pub fn with_capacity(ids: usize) -> Self {
        let (bound, none) = (ids.max(1), HashSet::new());
        Self(Arc::new(Mutex::new(DeduplicatorState { ids: none, order: VecDeque::new(), bound })))
    }

    /// Returns true if an event with this id was handled and is still remembered.
    pub fn contains(&self, id: &str) -> bool {
        self.lock().ids.contains(id)
    }

    /// Records that the event with this id was handled.
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
        // A panic between the two updates costs at most one remembered id.
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
