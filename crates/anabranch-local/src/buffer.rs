//! Large buffers that are used again.
//!
//! A read copies megabytes out of a shard and writes megabytes of reply. Fresh memory for each comes
//! from the kernel page by page, which costs more than the copying and the writing together.

use crate::guard;
use bytes::Bytes;
use std::sync::Mutex;

/// Buffers below this size are left to the allocator.
const WORTH_BYTES: usize = 64 * 1024;
/// Buffers above this size are not kept: they are rare.
const LARGEST_BYTES: usize = 8 * 1024 * 1024;
/// Buffers that are kept at most.
const KEPT: usize = 4;

/// Buffers that wait for their next use.
static IDLE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer with room for `room` bytes.
pub(crate) fn take(room: usize) -> Vec<u8> {
    if room < WORTH_BYTES {
        return Vec::with_capacity(room);
    }
    let mut buffer = guard::lock(&IDLE).pop().unwrap_or_default();
    buffer.reserve(room);
    buffer
}

/// Keeps a buffer for its next use, if it is worth it.
pub(crate) fn give_back(mut buffer: Vec<u8>) {
    if (WORTH_BYTES..=LARGEST_BYTES).contains(&buffer.capacity()) {
        let mut idle = guard::lock(&IDLE);
        if idle.len() < KEPT {
            buffer.clear();
            idle.push(buffer);
        }
    }
}

/// Shares a buffer; it is given back when nobody holds it any more.
pub(crate) fn share(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < WORTH_BYTES { buffer.into() } else { Bytes::from_owner(Lent(buffer)) }
}

/// A buffer that comes back by itself.
struct Lent(Vec<u8>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_buffer_keeps_its_bytes_until_the_last_holder_lets_go() {
        for size in [10, WORTH_BYTES, LARGEST_BYTES + 1] {
            let mut buffer = take(size);
            assert!(buffer.is_empty() && buffer.capacity() >= size);
            buffer.resize(size, 7);
            let whole = share(buffer);
            let part = whole.slice(size / 2..);
            drop(whole);
            // Others may take buffers meanwhile, but not this one.
            take(size).resize(size, 9);
            assert!(part.iter().all(|byte| *byte == 7), "{size}");
        }
    }
}
