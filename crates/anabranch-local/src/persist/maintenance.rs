//! Decides which journal files are still needed, and what to do with the others.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The share of one stream in one journal file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamShare {
    /// Bytes of the stream's entries.
    bytes: u64,
    /// Arrival time of the newest record, in milliseconds since 1970.
    newest_ms: u64,
}

/// The content of the journal files, by file and stream.
#[derive(Debug, Default)]
pub(super) struct Usage(BTreeMap<u64, BTreeMap<u64, StreamShare>>);

/// The next maintenance of the oldest files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaintenanceTask {
    /// No record below this file is needed: delete all files below.
    DropBelow(u64),
    /// Little below this file is needed: merge all files below into one small file.
    CompactBelow(u64),
}

/// Maximum number of files merged at a time, which bounds the duration.
const COMPACT_MAX_FILES: usize = 16;
/// Stands in for the stream of changes. Streams are numbered from 1.
const NO_STREAM: u64 = 0;

impl Usage {
    /// Counts records that were written to a file.
    pub(super) fn count(&mut self, file: u64, stream_id: u64, bytes: u64, arrival_ms: u64) {
        let shares = self.0.entry(file).or_default();
        let share = shares.entry(stream_id).or_insert(StreamShare { bytes: 0, newest_ms: 0 });
        share.bytes += bytes;
        share.newest_ms = share.newest_ms.max(arrival_ms);
    }

    /// Counts a change of metadata. The next file's snapshot contains it, so it is soon no longer
    /// needed.
    pub(super) fn count_change(&mut self, file: u64, bytes: u64) {
        self.count(file, NO_STREAM, bytes, 0);
    }

    /// Returns the maintenance that is due for the files `files`, of which the newest is being
    /// written. `horizons` gives, for each existing stream, the time before which its records are
    /// past retention. Files are merged once at least half of their bytes and at least `worth`
    /// bytes are not needed.
    pub(super) fn next_task(
        &self,
        files: RangeInclusive<u64>,
        horizons: &BTreeMap<u64, u64>,
        worth: u64,
    ) -> Option<MaintenanceTask> {
        let (oldest, newest) = files.into_inner();
        let needed = (oldest..newest).find(|file| self.bytes(*file, horizons).live > 0);
        let needed = needed.unwrap_or(newest);
        if needed > oldest {
            return Some(MaintenanceTask::DropBelow(needed));
        }
        let (mut sum, mut below) = (Bytes::default(), None);
        for file in (oldest..newest).take(COMPACT_MAX_FILES) {
            let bytes = self.bytes(file, horizons);
            sum = Bytes { live: sum.live + bytes.live, dead: sum.dead + bytes.dead };
            if sum.dead >= sum.live.max(worth) {
                below = Some(file + 1);
            }
        }
        below.map(MaintenanceTask::CompactBelow)
    }

    /// Forgets the files below `file`.
    pub(super) fn dropped_below(&mut self, file: u64) {
        self.0 = self.0.split_off(&file);
    }

    /// Replaces the counts of the files below `file` by `new`.
    pub(super) fn replace_below(&mut self, file: u64, new: Self) {
        self.dropped_below(file);
        self.0.extend(new.0);
    }

    fn bytes(&self, file: u64, horizons: &BTreeMap<u64, u64>) -> Bytes {
        let mut bytes = Bytes::default();
        for (stream, share) in self.0.get(&file).into_iter().flatten() {
            if horizons.get(stream).is_some_and(|horizon| share.newest_ms >= *horizon) {
                bytes.live += share.bytes;
            } else {
                bytes.dead += share.bytes;
            }
        }
        bytes
    }
}

/// Bytes of entries that are needed and of those that are not.
#[derive(Debug, Default, Clone, Copy)]
struct Bytes {
    live: u64,
    dead: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the task for files 1 to 4, of which 4 is being written. Streams 1 and 2 exist, and
    /// records before 1,000 are past retention.
    fn check(counts: &[(u64, u64, u64, u64)], chore: Option<MaintenanceTask>) {
        let mut usage = Usage::default();
        for (file, stream, bytes, arrival_ms) in counts {
            usage.count(*file, *stream, *bytes, *arrival_ms);
        }
        let horizons = BTreeMap::from([(1, 1_000), (2, 1_000)]);
        assert_eq!(usage.next_task(1..=4, &horizons, 50), chore, "{counts:?}");
    }

    #[test]
    fn files_go_when_no_record_in_them_is_needed() {
        check(&[(1, 1, 90, 1_000), (2, 1, 90, 1_000), (3, 1, 90, 1_000)], None);
        check(
            &[(1, 1, 90, 999), (2, 1, 90, 1_000), (3, 1, 90, 1_000)],
            Some(MaintenanceTask::DropBelow(2)),
        );
        // Stream 3 does not exist.
        check(
            &[(1, 3, 90, 1_000), (2, 3, 90, 1_000), (3, 1, 90, 999)],
            Some(MaintenanceTask::DropBelow(4)),
        );
        check(&[], Some(MaintenanceTask::DropBelow(4)));
    }

    #[test]
    fn files_shrink_when_half_of_them_is_not_needed() {
        let (live, dead) = (1_000, 999);
        check(
            &[(1, 1, 50, live), (1, 2, 50, dead), (2, 1, 90, live), (3, 1, 90, live)],
            Some(MaintenanceTask::CompactBelow(2)),
        );
        check(
            &[(1, 1, 90, live), (2, 1, 90, dead), (3, 1, 90, live)],
            Some(MaintenanceTask::CompactBelow(3)),
        );
        check(
            &[(1, 1, 90, live), (2, 1, 90, dead), (3, 1, 90, dead)],
            Some(MaintenanceTask::CompactBelow(4)),
        );
        check(&[(1, 1, 60, live), (1, 2, 59, dead), (2, 1, 90, live), (3, 1, 90, live)], None);
        // Changes of metadata are not needed in a file that has a successor.
        check(&[(1, 1, 60, live), (1, NO_STREAM, 60, 0)], Some(MaintenanceTask::CompactBelow(4)));
        // Too few bytes would be saved.
        check(&[(1, 1, 20, live), (1, 2, 49, dead), (2, 1, 90, live), (3, 1, 90, live)], None);
    }
}
