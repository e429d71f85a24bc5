//! CPU time and memory of this process.

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of all threads since the start, in nanoseconds.
pub(crate) fn spent_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    seconds * 1_000_000_000 + nanos
}

/// Returns the resident memory in KiB.
pub(crate) fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
