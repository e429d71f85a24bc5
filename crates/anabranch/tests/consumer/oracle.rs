//! What was put against what was delivered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What was put and what was delivered, by key and number. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Oracle(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    /// How many records each key has; they are numbered from 0.
    put: BTreeMap<String, usize>,
    /// Every delivery: the key, the number, and who handled it.
    delivered: Vec<(String, usize, &'static str)>,
}

impl Oracle {
    /// The number of the next record of a key, which was put.
    pub(crate) fn put(&self, key: &str) -> usize {
        let mut inside = self.0.lock().unwrap();
        let next = inside.put.entry(key.to_owned()).or_default();
        *next += 1;
        *next - 1
    }

    /// A record was delivered to `by`.
    pub(crate) fn delivered(&self, key: &str, data: &[u8], by: &'static str) {
        let number = std::str::from_utf8(data).unwrap().parse().unwrap();
        self.0.lock().unwrap().delivered.push((key.to_owned(), number, by));
    }

    /// How many records were put.
    pub(crate) fn puts(&self) -> usize {
        self.0.lock().unwrap().put.values().sum()
    }

    /// How many different records were delivered.
    pub(crate) fn seen(&self) -> usize {
        let mut seen = self.deliveries();
        seen.sort();
        seen.dedup();
        seen.len()
    }

    /// How many records `by` was given.
    pub(crate) fn given_to(&self, by: &str) -> usize {
        self.0.lock().unwrap().delivered.iter().filter(|(_, _, who)| *who == by).count()
    }

    /// Every delivery, by key and number.
    pub(crate) fn deliveries(&self) -> Vec<(String, usize)> {
        let inside = self.0.lock().unwrap();
        inside.delivered.iter().map(|(key, number, _)| (key.clone(), *number)).collect()
    }

    /// Deliveries beyond the first of each record.
    pub(crate) fn duplicates(&self) -> usize {
        self.deliveries().len() - self.seen()
    }

    /// Everything was delivered, and the first deliveries of each key came in the order of its
    /// puts.
    pub(crate) fn check(&self) {
        let inside = self.0.lock().unwrap();
        let mut next: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, number, by) in &inside.delivered {
            let next = next.entry(key).or_default();
            assert!(*number <= *next, "{key}: {number} came to {by} before {next}");
            *next = (*next).max(number + 1);
        }
        for (key, count) in &inside.put {
            let seen = next.get(key.as_str()).copied().unwrap_or(0);
            assert_eq!(seen, *count, "{key}: {seen} of {count} were delivered");
        }
    }
}
