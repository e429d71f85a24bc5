//! The large buffers of all requests and replies: a read copies megabytes out of a shard and writes
//! megabytes of reply.

use crate::buffers::Buffers;
use bytes::Bytes;
use std::sync::LazyLock;

/// How many bytes are kept for the next use.
const KEPT_BYTES: usize = 32 * 1024 * 1024;

static BUFFERS: LazyLock<Buffers> = LazyLock::new(|| Buffers::keeping(KEPT_BYTES));

/// An empty buffer with room for `room` bytes.
pub(crate) fn take(room: usize) -> Vec<u8> {
    BUFFERS.take(room)
}

/// Shares a buffer; it is given back when nobody holds it any more.
pub(crate) fn share(buffer: Vec<u8>) -> Bytes {
    BUFFERS.share(buffer)
}
