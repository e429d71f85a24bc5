//! The large buffers of all requests and replies: a read copies megabytes out of a shard and writes
//! megabytes of reply. They are used again: to get fresh memory from the system for each, page by
//! page, costs more than to write it.

use bytes::Bytes;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// How many bytes are kept for the next use.
const KEPT_BYTES: usize = 32 * 1024 * 1024;

/// Buffers below this size are left to the allocator.
const WORTH_BYTES: usize = 64 * 1024;
/// How many are kept, at the most.
const KEPT: usize = 4;

static BUFFERS: LazyLock<BufferPool> = LazyLock::new(|| BufferPool::keeping(KEPT_BYTES));

/// An empty buffer with room for `room` bytes.
pub(crate) fn take(room: usize) -> Vec<u8> {
    BUFFERS.take(room)
}

/// Shares a buffer; it is given back when nobody holds it any more.
pub(crate) fn share(buffer: Vec<u8>) -> Bytes {
    BUFFERS.share(buffer)
}

/// Buffers that wait for their next use. Clones share them.
#[derive(Debug, Clone)]
struct BufferPool {
    /// Those that wait.
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
    /// How many bytes are kept, in all.
    kept_bytes: usize,
}

impl BufferPool {
    /// None yet. So many bytes are kept, in all.
    fn keeping(bytes: usize) -> Self {
        Self { idle: Arc::default(), kept_bytes: bytes }
    }

    /// An empty buffer with room for `room` bytes.
    fn take(&self, room: usize) -> Vec<u8> {
        if room < WORTH_BYTES {
            return Vec::with_capacity(room);
        }
        let mut buffer = self.with_idle(Vec::pop).unwrap_or_default();
        buffer.reserve(room);
        buffer
    }

    /// Shares a buffer; it is given back when nobody holds it any more.
    fn share(&self, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < WORTH_BYTES {
            return buffer.into();
        }
        Bytes::from_owner(PooledBuffer { buffer, home: self.clone() })
    }

    /// Keeps a buffer for its next use, if it is worth it.
    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.with_idle(|idle| {
            let bytes = idle.iter().chain([&buffer]).map(Vec::capacity).sum::<usize>();
            if idle.len() < KEPT && bytes <= self.kept_bytes {
                idle.push(buffer);
            }
        });
    }

    fn with_idle<R>(&self, then: impl FnOnce(&mut Vec<Vec<u8>>) -> R) -> R {
        // Nothing here panics half-way through a change.
        then(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A buffer that comes back by itself.
struct PooledBuffer {
    buffer: Vec<u8>,
    home: BufferPool,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of those that are kept.
    fn kept(buffers: &BufferPool) -> Vec<usize> {
        buffers.with_idle(|idle| idle.iter().map(Vec::capacity).collect())
    }

    #[test]
    fn a_shared_buffer_keeps_its_bytes_until_the_last_holder_lets_go() {
        let buffers = BufferPool::keeping(1 << 20);
        let mut buffer = buffers.take(100_000);
        buffer.resize(100_000, 7);
        let (place, size) = (buffer.as_ptr(), buffer.capacity());
        let whole = buffers.share(buffer);
        let part = whole.slice(50_000..);
        drop(whole);
        assert_eq!(kept(&buffers), [0; 0]);
        buffers.take(100_000).resize(100_000, 9);
        assert!(part.iter().all(|byte| *byte == 7));
        drop(part);
        assert_eq!(kept(&buffers), [size]);
        let again = buffers.take(70_000);
        assert!(again.is_empty() && again.as_ptr() == place, "it is used again");
        drop(buffers.share(again));
        assert!(buffers.take(500_000).capacity() >= 500_000);
    }

    #[test]
    fn few_are_kept_and_none_that_is_small() {
        let buffers = BufferPool::keeping(1 << 20);
        let shared = |size: usize| buffers.share(buffers.take(size));
        drop((0..10).map(|_| shared(70_000)).collect::<Vec<_>>());
        assert_eq!(kept(&buffers), [70_000; KEPT]);
        let buffers = BufferPool::keeping(1 << 20);
        let shared = |size: usize| buffers.share(buffers.take(size));
        drop((0..3).map(|_| shared(400_000)).collect::<Vec<_>>());
        assert_eq!(kept(&buffers), [400_000; 2], "no more bytes than that");
        drop(shared(100));
        assert_eq!(kept(&buffers), [400_000; 2]);
    }
}
