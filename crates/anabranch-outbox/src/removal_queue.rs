//! Queue of rows in the stream that are to be removed: batch sizes and timing.
//!
//! A single row that the database refuses to remove fails its whole batch. A failed batch is
//! therefore halved until the other rows are removed and the refused row is alone. Such rows are
//! set aside and retried one by one, while the others proceed.

use crate::read::RowId;
use std::collections::VecDeque;

/// Number of consecutive fresh rows refused, without a success, after which fresh removals pause.
const STRIKES: u32 = 8;
/// The retry pause is divided among the rows set aside, up to this many.
const SHARE: u64 = 8;

/// Rows that are removed in batches.
#[derive(Debug)]
struct RemovalPile {
    /// The rows, next one first.
    rows: VecDeque<RowId>,
    /// Maximum size of the next batch.
    most: usize,
    /// Earliest time of the next batch.
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

/// Origin of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemovalSource {
    Fresh,
    SetAside,
}

/// Consequence of a failed batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedRemoval {
    /// A smaller part of the batch comes next.
    Halved,
    /// The batch was this single row, which is retried later.
    Alone(RowId),
}

/// Schedules the removal of rows.
#[derive(Debug)]
pub(crate) struct RemovalScheduler {
    /// Rows that were not refused alone.
    fresh: RemovalPile,
    /// Rows that were refused alone, the least recently tried first.
    set_aside: RemovalPile,
    /// Origin and size of the batch in progress.
    under_way: Option<(RemovalSource, usize)>,
    /// Number of fresh rows refused alone since the last success.
    strikes: u32,
}

impl Default for RemovalScheduler {
    fn default() -> Self {
        let (fresh, set_aside) = (RemovalPile::new(usize::MAX), RemovalPile::new(1));
        Self { fresh, set_aside, under_way: None, strikes: 0 }
    }
}

impl RemovalScheduler {
    /// Adds a row that is in the stream.
    pub(crate) fn push(&mut self, row: RowId) {
        self.fresh.rows.push_back(row);
    }

    /// Returns the number of rows that the next batch may contain.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh.rows.len()
    }

    /// Returns the number of rows in the stream that were not reported as removed from the table.
    pub(crate) fn len(&self) -> usize {
        let under_way = self.under_way.map_or(0, |(_, rows)| rows);
        self.fresh.rows.len() + self.set_aside.rows.len() + under_way
    }

    /// Returns the first of these rows that is not in progress.
    pub(crate) fn first(&self) -> Option<RowId> {
        self.set_aside.rows.front().or(self.fresh.rows.front()).copied()
    }

    /// Returns the time of the next batch, if fresh rows may be removed from `fresh_at_ms` on.
    pub(crate) fn wake_ms(&self, fresh_at_ms: u64) -> u64 {
        let at = |pile: &RemovalPile| if pile.rows.is_empty() { u64::MAX } else { pile.at_ms };
        at(&self.fresh).max(fresh_at_ms).min(at(&self.set_aside))
    }

    /// Returns the next batch, if one is due. `fresh` permits a batch of fresh rows.
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

    /// Records that the batch in progress was removed. The next one may be larger.
    pub(crate) fn removal_done(&mut self) {
        let Some((from, _)) = self.under_way.take() else { return };
        let pile = self.pile(from);
        pile.most = pile.most.saturating_mul(2);
        self.strikes = 0;
        if from == RemovalSource::SetAside {
            // The cause of the other failures may be gone too.
            (self.set_aside.at_ms, self.fresh.at_ms) = (0, 0);
        }
    }

    /// Records that the batch in progress failed. A row that fails alone is not retried for
    /// `pause_ms`.
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
            // A few rows are each tried once per pause; of many rows, some are.
            let share = (self.set_aside.rows.len() as u64).clamp(1, SHARE);
            self.set_aside.at_ms = now_ms + pause_ms / share;
        }
        FailedRemoval::Alone(row)
    }

    /// Retries the rows set aside once more, together with the others.
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

    /// A table that refuses to remove some rows, and a log of the attempts.
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

        /// Runs the batches that are due.
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
        // Number of rows, rows refused, and maximum number of statements.
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
        // One fresh row and eight others in each of four pauses, plus the rest of the halving.
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
