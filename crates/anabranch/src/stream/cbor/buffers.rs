//! Memory of large requests, used again: to get fresh pages of the system for each of them costs
//! more than to write them.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// How many are kept.
const KEPT_MOST: usize = 4;
/// How much is kept, in all.
const KEPT_MOST_BYTES: usize = 8 << 20;

/// Memory that is kept for the next requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// Empty memory, with room for this many bytes.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let kept = self.kept(Vec::pop);
        let mut buffer = kept.unwrap_or_default();
        buffer.reserve(bytes);
        buffer
    }

    /// What was written, as bytes whose memory comes back when nobody holds them any longer.
    pub(super) fn lend(&self, written: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { written, home: self.clone() })
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let bytes = buffer.capacity();
        self.kept(|kept| {
            let all = kept.iter().map(Vec::capacity).sum::<usize>();
            if kept.len() < KEPT_MOST && all.saturating_add(bytes) <= KEPT_MOST_BYTES {
                kept.push(buffer);
            }
        });
    }

    fn kept<R>(&self, with: impl FnOnce(&mut Vec<Vec<u8>>) -> R) -> R {
        // Nothing panics half-way through a change.
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request that someone holds.
struct Lent {
    written: Vec<u8>,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.written
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.written));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much memory is kept, one by one.
    fn kept(buffers: &Buffers) -> Vec<usize> {
        buffers.kept(|kept| kept.iter().map(Vec::capacity).collect())
    }

    #[test]
    fn memory_comes_back_with_the_last_that_holds_it() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take(1_000);
        buffer.extend_from_slice(b"a request");
        let (at, capacity) = (buffer.as_ptr(), buffer.capacity());
        let body = buffers.lend(buffer);
        let again = body.clone();
        drop(body);
        assert_eq!(kept(&buffers), [0; 0], "it is sent again, perhaps");
        assert_eq!(again, "a request");
        drop(again);
        assert_eq!(kept(&buffers), [capacity]);
        let next = buffers.take(10);
        assert!(next.is_empty() && next.as_ptr() == at);
        assert!(buffers.take(5_000).capacity() >= 5_000);
    }

    #[test]
    fn little_memory_is_kept() {
        let buffers = Buffers::default();
        let many: Vec<Bytes> = (0..10).map(|_| buffers.lend(buffers.take(100))).collect();
        drop(many);
        assert_eq!(kept(&buffers).len(), KEPT_MOST);
        let buffers = Buffers::default();
        let large: Vec<Bytes> = (0..3).map(|_| buffers.lend(buffers.take(3 << 20))).collect();
        drop(large);
        assert_eq!(kept(&buffers), [3 << 20; 2]);
        drop(buffers.lend(Vec::with_capacity(9 << 20)));
        assert_eq!(kept(&buffers), [3 << 20; 2]);
    }
}
