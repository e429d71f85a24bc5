//! The marks of the aggregates that a shard's reading met: by them it knows a second copy.

use anabranch_model::aggregate::dedup_tag::DedupTag;
use anabranch_model::aggregate::digest::Digest;
use anabranch_model::sequence::SequenceNumber;
use std::collections::VecDeque;

/// How many marks are remembered. A second copy comes soon behind the first one: while its producer
/// waits for a reply, nothing else of that lane goes to the shard.
const REMEMBERED: usize = 512;

/// The last marks of one reading of a shard. Another reading knows nothing of them: what it meets
/// for the first time it delivers.
#[derive(Debug, Default)]
pub(in crate::consumer) struct RecentDedupTags {
    /// The marks and where each was met first, oldest first. There are few, and one look for each
    /// aggregate, so they are gone through.
    met: VecDeque<(DuplicateKey, SequenceNumber)>,
}

/// What copies have in common. The mark alone would not do: two producers that draw the same number
/// make different aggregates under one mark, and none of them may be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::consumer) struct DuplicateKey {
    pub(in crate::consumer) mark: DedupTag,
    /// The digest of the aggregate, which is at its end.
    pub(in crate::consumer) digest: Digest,
}

impl RecentDedupTags {
    /// Whether this is another copy of an aggregate that was met before. One that is read again is
    /// none: what was to be delivered of it may not have been.
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
