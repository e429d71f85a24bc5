//! The oracle: compares the records that were put with those that were delivered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Records that were put and delivered, by key and number. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Oracle(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    /// Number of records of each key; they are numbered from 0.
    put: BTreeMap<String, usize>,
    /// Deliveries: the key, the number, and the handler.
    delivered: Vec<(String, usize, &'static str)>,
}

impl Oracle {
    /// Adds a put, and returns the number of the record among those of its key.
    pub(crate) fn put(&self, key: &str) -> usize {
        let mut inside = self.0.lock().unwrap();
        let next = inside.put.entry(key.to_owned()).or_default();
        *next += 1;
        *next - 1
    }

    /// Adds a delivery to `by`.
    pub(crate) fn delivered(&self, key: &str, data: &[u8], by: &'static str) {
        let number = std::str::from_utf8(data).unwrap().parse().unwrap();
        self.0.lock().unwrap().delivered.push((key.to_owned(), number, by));
    }

    /// Returns the number of records that were put.
    pub(crate) fn puts(&self) -> usize {
        self.0.lock().unwrap().put.values().sum()
    }

    /// Returns the number of different records that were delivered.
    pub(crate) fn seen(&self) -> usize {
        let mut seen = self.deliveries();
        seen.sort();
        seen.dedup();
        seen.len()
    }

    /// Returns the number of deliveries to `by`.
    pub(crate) fn given_to(&self, by: &str) -> usize {
        self.0.lock().unwrap().delivered.iter().filter(|(_, _, who)| *who == by).count()
    }

    /// Returns every delivery, by key and number.
    pub(crate) fn deliveries(&self) -> Vec<(String, usize)> {
        let inside = self.0.lock().unwrap();
        inside.delivered.iter().map(|(key, number, _)| (key.clone(), *number)).collect()
    }

    /// Returns the number of deliveries beyond the first of each record.
    pub(crate) fn duplicates(&self) -> usize {
        self.deliveries().len() - self.seen()
    }

    /// Asserts that everything was delivered, and that the first deliveries of each key were in the
    /// order of its puts.
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
