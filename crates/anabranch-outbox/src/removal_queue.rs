//! The rows that are in the stream and have to leave the table: in which batches, and when.
//!
//! One row that the database will not remove keeps its whole batch in the table. So a batch that
//! stays is halved, until what can go has gone and the row stands alone. Such rows are set aside
//! and tried again one by one; the others go on.

use crate::read::RowId;
use std::collections::VecDeque;

/// So many rows that stay one after another, and none that goes between, mean that nothing goes.
const STRIKES: u32 = 8;
/// Rows that were set aside share a pause, up to so many.
const SHARE: u64 = 8;

/// Rows that leave in batches.
#[derive(Debug)]
struct RemovalPile {
    /// The rows, the next one first.
    rows: VecDeque<RowId>,
    /// The most that a batch may have.
    most: usize,
    /// Not before this time is a batch taken.
    at_ms: u64,
}

impl RemovalPile {
    fn new(most: usize) -> Self {
        Self { rows: VecDeque::new(), most, at_ms: 0 }
    }

    fn is_due(&self, now_ms: u64) -> bool {
        !self.rows.is_empty() && now_ms >= self.at_ms
    }

    fn batch(&mut self) -> Vec<RowId> {
        let count = self.most.min(self.rows.len());
        self.rows.drain(..count).collect()
    }

    fn put_back(&mut self, rows: Vec<RowId>) {
        self.most = (rows.len() / 2).max(1);
        for row in rows.into_iter().rev() {
            self.rows.push_front(row);
        }
    }
}

/// Where a batch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemovalSource {
    Fresh,
    SetAside,
}

/// What became of a batch that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedRemoval {
    /// A smaller part of it comes next.
    Halved,
    /// It is this one row, which is tried again later.
    Alone(RowId),
}

/// The rows that have to leave.
#[derive(Debug)]
pub(crate) struct RemovalScheduler {
    /// Those that were not refused alone.
    fresh: RemovalPile,
    /// Those that were, the one that was tried longest ago first.
    set_aside: RemovalPile,
    /// The batch that is under way: where it came from, and its size.
    under_way: Option<(RemovalSource, usize)>,
    /// How many fresh rows stayed alone since a row went.
    strikes: u32,
}

impl Default for RemovalScheduler {
    fn default() -> Self {
        let (fresh, set_aside) = (RemovalPile::new(usize::MAX), RemovalPile::new(1));
        Self { fresh, set_aside, under_way: None, strikes: 0 }
    }
}

impl RemovalScheduler {
    /// A row is in the stream.
    pub(crate) fn push(&mut self, row: RowId) {
        self.fresh.rows.push_back(row);
    }

    /// How many rows may go with the next batch.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh.rows.len()
    }

    /// How many rows are in the stream and, for all that is known, in the table.
    pub(crate) fn len(&self) -> usize {
        let under_way = self.under_way.map_or(0, |(_, rows)| rows);
        self.fresh.rows.len() + self.set_aside.rows.len() + under_way
    }

    /// The first of these rows that is not under way.
    pub(crate) fn first(&self) -> Option<RowId> {
        self.set_aside.rows.front().or(self.fresh.rows.front()).copied()
    }

    /// When there is something to do: with rows that are fresh from `fresh_at_ms` on.
    pub(crate) fn wake_ms(&self, fresh_at_ms: u64) -> u64 {
        let at = |pile: &RemovalPile| if pile.rows.is_empty() { u64::MAX } else { pile.at_ms };
        at(&self.fresh).max(fresh_at_ms).min(at(&self.set_aside))
    }

    /// The next batch, if one is due; `fresh` says whether fresh rows may go.
    pub(crate) fn next(&mut self, now_ms: u64, fresh: bool) -> Option<Vec<RowId>> {
        if self.under_way.is_some() {
            return None;
        }
        let (from, pile) = if self.set_aside.is_due(now_ms) {
            (RemovalSource::SetAside, &mut self.set_aside)
        } else if fresh && self.fresh.is_due(now_ms) {
            (RemovalSource::Fresh, &mut self.fresh)
        } else {
            return None;
        };
        let rows = pile.batch();
        self.under_way = Some((from, rows.len()));
        Some(rows)
    }

    /// The batch that was under way has gone, so the next one may be larger.
    pub(crate) fn removal_done(&mut self) {
        let Some((from, _)) = self.under_way.take() else { return };
        let pile = self.pile(from);
        pile.most = pile.most.saturating_mul(2);
        self.strikes = 0;
        if from == RemovalSource::SetAside {
            // What kept the others may have passed too.
            (self.set_aside.at_ms, self.fresh.at_ms) = (0, 0);
        }
    }

    /// The batch that was under way stays. Rows that stay alone are not tried for `pause_ms`.
    pub(crate) fn removal_failed(
        &mut self,
        rows: Vec<RowId>,
        now_ms: u64,
        pause_ms: u64,
    ) -> FailedRemoval {
        let from = self.under_way.take().map_or(RemovalSource::Fresh, |(from, _)| from);
        let &[row] = rows.as_slice() else {
            self.pile(from).put_back(rows);
            return FailedRemoval::Halved;
        };
        self.pile(from).most = 1;
        self.set_aside.rows.push_back(row);
        if from == RemovalSource::Fresh {
            self.strikes += 1;
            if self.strikes >= STRIKES {
                self.fresh.at_ms = now_ms + pause_ms;
            }
        }
        if from == RemovalSource::SetAside || self.set_aside.rows.len() == 1 {
            // Each of a few is tried once in a pause; of many, some are.
            let share = (self.set_aside.rows.len() as u64).clamp(1, SHARE);
            self.set_aside.at_ms = now_ms + pause_ms / share;
        }
        FailedRemoval::Alone(row)
    }

    /// Gives rows that were set aside one more chance together with the others.
    pub(crate) fn retry_all(&mut self) {
        let rows: Vec<RowId> = self.set_aside.rows.drain(..).collect();
        self.fresh.rows.extend(rows);
        (self.fresh.at_ms, self.fresh.most, self.strikes) = (0, usize::MAX, 0);
    }

    fn pile(&mut self, from: RemovalSource) -> &mut RemovalPile {
        match from {
            RemovalSource::Fresh => &mut self.fresh,
            RemovalSource::SetAside => &mut self.set_aside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PAUSE_MS: u64 = 15_000;

    fn row(id: i64) -> RowId {
        RowId { id, transaction: None }
    }

    /// A table that refuses some rows, and what it was asked.
    struct Table {
        leaving: RemovalScheduler,
        refuses: BTreeSet<i64>,
        removed: BTreeSet<i64>,
        named: Vec<i64>,
        statements: usize,
    }

    impl Table {
        fn new(rows: i64, refuses: impl IntoIterator<Item = i64>) -> Self {
            let mut leaving = RemovalScheduler::default();
            (1..=rows).for_each(|id| leaving.push(row(id)));
            let (refuses, removed) = (refuses.into_iter().collect(), BTreeSet::new());
            Self { leaving, refuses, removed, named: Vec::new(), statements: 0 }
        }

        /// Removes what is due at this time.
        fn run(&mut self, now_ms: u64) {
            while let Some(rows) = self.leaving.next(now_ms, true) {
                self.statements += 1;
                assert!(self.statements < 10_000, "the same rows come again and again");
                if rows.iter().any(|row| self.refuses.contains(&row.id)) {
                    if let FailedRemoval::Alone(row) =
                        self.leaving.removal_failed(rows, now_ms, PAUSE_MS)
                    {
                        self.named.push(row.id);
                    }
                } else {
                    self.removed.extend(rows.iter().map(|row| row.id));
                    self.leaving.removal_done();
                }
            }
        }
    }

    #[test]
    fn rows_that_stay_are_found_and_all_others_go() {
        // How many rows, which of them stay, and how many statements that may take.
        for (rows, refuses, statements) in [
            (1, vec![], 1),
            (1_000, vec![], 1),
            (1_000, vec![17], 40),
            (1_000, vec![1], 40),
            (1_000, vec![1_000], 40),
            (20_000, vec![17, 18, 9_000, 20_000], 160),
            (1, vec![1], 1),
        ] {
            let mut table = Table::new(rows, refuses.clone());
            table.run(0);
            assert_eq!(table.named, refuses, "{rows}");
            assert_eq!(table.removed.len() + refuses.len(), usize::try_from(rows).unwrap());
            assert_eq!(table.leaving.len(), refuses.len());
            assert!(table.statements <= statements, "{rows}, {refuses:?}: {}", table.statements);
        }
    }

    #[test]
    fn a_row_that_stays_is_tried_again_alone_and_what_comes_later_goes() {
        let mut table = Table::new(10, [4]);
        table.run(0);
        table.leaving.push(row(11));
        table.run(1);
        assert!(table.removed.contains(&11), "{:?}", table.removed);
        assert_eq!((table.leaving.wake_ms(0), table.leaving.fresh()), (PAUSE_MS, 0));
        table.run(PAUSE_MS);
        assert_eq!(table.named, [4, 4]);
        table.refuses.clear();
        table.run(2 * PAUSE_MS);
        assert_eq!(table.leaving.len(), 0);
    }

    #[test]
    fn where_no_row_goes_few_are_tried_in_a_pause_and_all_go_once_they_may() {
        let mut table = Table::new(1_000, 1..=1_000);
        table.run(0);
        assert!(table.statements < 30, "{}", table.statements);
        let before = table.statements;
        for second in 1..=60 {
            table.run(second * 1_000);
        }
        // One fresh row and eight others in each of four pauses, and what halving leaves.
        assert!(table.statements - before < 60, "{}", table.statements - before);
        assert_eq!((table.removed.len(), table.leaving.len()), (0, 1_000));
        table.refuses.clear();
        for second in 60..=80 {
            table.run(second * 1_000);
        }
        assert_eq!((table.removed.len(), table.leaving.len()), (1_000, 0));
    }

    #[test]
    fn rows_that_were_set_aside_never_keep_others_from_going() {
        let mut table = Table::new(1_000, (1..=1_000).step_by(40));
        for second in 0..=100 {
            table.run(second * 1_000);
        }
        assert_eq!((table.removed.len(), table.leaving.len()), (975, 25));
        table.leaving.push(row(2_000));
        table.run(100_500);
        assert!(table.removed.contains(&2_000));
    }

    #[test]
    fn at_the_end_all_rows_have_one_more_chance() {
        let mut table = Table::new(20, [3, 5]);
        table.run(0);
        table.refuses.remove(&5);
        table.leaving.retry_all();
        table.run(1);
        assert_eq!((table.leaving.len(), table.leaving.first()), (1, Some(row(3))));
    }
}
