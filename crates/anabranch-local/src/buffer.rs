//! A pool of the large buffers of all requests and replies. A read copies megabytes out of a shard
//! and writes a reply of megabytes. Buffers are reused because getting fresh memory from the
//! system, page by page, costs more than writing to it.

use bytes::Bytes;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Total bytes kept for reuse.
const KEPT_BYTES: usize = 32 * 1024 * 1024;

/// Buffers below this size are left to the allocator.
const WORTH_BYTES: usize = 64 * 1024;
/// Maximum number of buffers kept.
const KEPT: usize = 4;

static BUFFERS: LazyLock<BufferPool> = LazyLock::new(|| BufferPool::keeping(KEPT_BYTES));

/// Returns an empty buffer with capacity for at least `room` bytes.
pub(crate) fn take(room: usize) -> Vec<u8> {
    BUFFERS.take(room)
}

/// Shares a buffer. It returns to the pool when the last handle is dropped.
pub(crate) fn share(buffer: Vec<u8>) -> Bytes {
    BUFFERS.share(buffer)
}

/// A pool of idle buffers. Clones share it.
#[derive(Debug, Clone)]
struct BufferPool {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Limit on the total bytes kept.
    kept_bytes: usize,
}

impl BufferPool {
    /// Creates an empty pool that keeps at most `bytes` bytes.
    fn keeping(bytes: usize) -> Self {
        Self { idle: Arc::default(), kept_bytes: bytes }
    }

    /// Returns an empty buffer with capacity for at least `room` bytes.
    fn take(&self, room: usize) -> Vec<u8> {
        if room < WORTH_BYTES {
            return Vec::with_capacity(room);
        }
        let mut buffer = self.with_idle(Vec::pop).unwrap_or_default();
        buffer.reserve(room);
        buffer
    }

    /// Shares a buffer. It returns to the pool when the last handle is dropped.
    fn share(&self, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < WORTH_BYTES {
            return buffer.into();
        }
        Bytes::from_owner(PooledBuffer { buffer, home: self.clone() })
    }

    /// Keeps a buffer for reuse, unless the pool is at one of its limits.
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
        // No critical section panics in the middle of a change.
        then(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A buffer that returns to its pool when dropped.
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

    /// Returns the capacities of the buffers kept.
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
