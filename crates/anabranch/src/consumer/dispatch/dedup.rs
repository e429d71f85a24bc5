//! Deduplication tags of recent aggregates, by which the reading of a shard recognizes duplicates.

use anabranch_model::aggregate::dedup_tag::DedupTag;
use anabranch_model::aggregate::digest::Digest;
use anabranch_model::sequence::SequenceNumber;
use std::collections::VecDeque;

/// Number of tags to remember. A duplicate follows soon after the original: while its producer
/// waits for a reply, it sends nothing else of that lane to the shard.
const REMEMBERED: usize = 512;

/// The most recent tags seen by one reading of a shard. Another reading starts empty, and delivers
/// an aggregate that it sees for the first time.
#[derive(Debug, Default)]
pub(in crate::consumer) struct RecentDedupTags {
    /// Each tag with the sequence number where it was first seen, oldest first. There are few
    /// entries and one lookup per aggregate, so a linear search is enough.
    met: VecDeque<(DuplicateKey, SequenceNumber)>,
}

/// Identity of an aggregate. The tag alone is not enough: two producers that draw the same random
/// number create different aggregates with one tag, and neither may be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::consumer) struct DuplicateKey {
    pub(in crate::consumer) mark: DedupTag,
    /// Digest of the aggregate, stored at its end.
    pub(in crate::consumer) digest: Digest,
}

impl RecentDedupTags {
    /// Returns true if the aggregate was seen before at another sequence number. The same sequence
    /// number means that the aggregate is read again: its records may not have been delivered, so
    /// it is not a duplicate.
    pub(in crate::consumer) fn is_duplicate(
        &mut self,
        copied: DuplicateKey,
        sequence: SequenceNumber,
    ) -> bool {
        if let Some((_, first)) = self.met.iter().rev().find(|(met, _)| *met == copied) {
            return *first != sequence;
        }
        if self.met.len() == REMEMBERED {
            self.met.pop_front();
        }
        self.met.push_back((copied, sequence));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_elsewhere_is_a_repeat_until_many_others_came() {
        let of = |producer, container| DedupTag { producer, container };
        let mark = |container| DuplicateKey { mark: of(1, container), digest: [7; 16] };
        let at = |number| SequenceNumber::from_limbs(0, 0, number).unwrap();
        let mut marks = RecentDedupTags::default();
        assert!(!marks.is_duplicate(mark(0), at(10)));
        assert!(!marks.is_duplicate(DuplicateKey { mark: of(2, 0), digest: [7; 16] }, at(11)));
        let other = DuplicateKey { digest: [8; 16], ..mark(0) };
        assert!(!marks.is_duplicate(other, at(11)), "another aggregate under the same mark");
        assert!(!marks.is_duplicate(mark(0), at(10)), "read again, not put again");
        assert!(marks.is_duplicate(mark(0), at(12)) && marks.is_duplicate(mark(0), at(13)));
        assert!(!marks.is_duplicate(mark(0), at(10)), "the first one stays the first");
        for container in 1..=REMEMBERED as u64 {
            assert!(!marks.is_duplicate(mark(container), at(100 + container)));
        }
        assert_eq!(marks.met.len(), REMEMBERED, "the memory is bounded");
        assert!(!marks.is_duplicate(mark(0), at(1_000)));
    }
}
