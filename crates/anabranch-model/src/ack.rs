//! Ack window: turns acks in any order into a watermark, the position up to which everything is
//! acked.

use std::collections::VecDeque;

/// Deliveries of one lane and their acks.
///
/// Positions are issued in ascending order and acked in any order. The watermark is the highest
/// position such that it and everything issued before it are acked; a checkpoint there loses
/// nothing.
#[derive(Debug, Clone)]
pub struct AckWindow<P> {
    /// Highest position with nothing unacked below it; `None` before the first.
    watermark: Option<P>,
    /// Ticket of the oldest delivery in `open`.
    oldest: u64,
    /// Deliveries above the watermark, oldest first. The first one is never acked.
    open: VecDeque<OpenDelivery<P>>,
    /// Maximum number of deliveries above the watermark.
    max_gap: usize,
}

/// A delivery above the watermark.
#[derive(Debug, Clone)]
struct OpenDelivery<P> {
    position: P,
    acked: bool,
}

/// Identifies one delivery of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AckTicket(u64);

/// Reason why a position was not issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotIssued {
    /// The gap is at its maximum. Wait until the oldest delivery is acked.
    #[error("{max_gap} deliveries are open above the watermark, which is the maximum")]
    GapFull {
        /// Maximum of this window.
        max_gap: usize,
    },
    /// The position is not above the one issued last.
    #[error("positions must be issued in ascending order")]
    NotAscending,
}

/// Result of an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckResult {
    /// The watermark advanced.
    Advanced,
    /// An older delivery is still open, so the watermark waits for it.
    Waiting,
    /// The delivery was acked before.
    Duplicate,
    /// The window never issued this ticket.
    NotIssued,
}

impl<P: Ord + Clone> AckWindow<P> {
    /// Creates a window that allows `max_gap` deliveries above the watermark; at least one.
    pub fn new(max_gap: usize) -> Self {
        Self { watermark: None, oldest: 0, open: VecDeque::new(), max_gap: max_gap.max(1) }
    }

    /// Creates a window that continues after `watermark`.
    pub fn resume(watermark: P, max_gap: usize) -> Self {
        Self { watermark: Some(watermark), ..Self::new(max_gap) }
    }

    /// Returns the position up to which everything is acked.
    pub fn watermark(&self) -> Option<&P> {
        self.watermark.as_ref()
    }

    /// Returns the number of deliveries above the watermark, including acked ones.
    pub fn gap(&self) -> usize {
        self.open.len()
    }

    /// Returns true if every delivery is acked.
    pub fn is_drained(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the oldest unacked position, which holds the watermark back.
    pub fn holding_back(&self) -> Option<&P> {
        self.open.front().map(|delivery| &delivery.position)
    }

    /// Issues a ticket for a delivery at `position`.
    pub fn issue(&mut self, position: P) -> Result<AckTicket, NotIssued> {
        let last = self.open.back().map(|delivery| &delivery.position).or(self.watermark.as_ref());
        if last.is_some_and(|last| position <= *last) {
            return Err(NotIssued::NotAscending);
        }
        if self.open.len() == self.max_gap {
            return Err(NotIssued::GapFull { max_gap: self.max_gap });
        }
        self.open.push_back(OpenDelivery { position, acked: false });
        Ok(AckTicket(self.oldest + (self.open.len() - 1) as u64))
    }

    /// Acks a delivery. Each delivery enters and leaves once, so the amortized cost of an ack is
    /// constant.
    pub fn ack(&mut self, ticket: AckTicket) -> AckResult {
        let Some(above) = ticket.0.checked_sub(self.oldest) else { return AckResult::Duplicate };
        let at = usize::try_from(above).unwrap_or(usize::MAX);
        let Some(delivery) = self.open.get_mut(at) else { return AckResult::NotIssued };
        if std::mem::replace(&mut delivery.acked, true) {
            return AckResult::Duplicate;
        }
        if at > 0 {
            return AckResult::Waiting;
        }
        while let Some(done) = self.open.pop_front_if(|oldest| oldest.acked) {
            self.watermark = Some(done.position);
            self.oldest += 1;
        }
        AckResult::Advanced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_watermark_waits_for_the_oldest_delivery() {
        let mut window = AckWindow::new(10);
        let [a, b, c] = [10, 20, 30].map(|position| window.issue(position).unwrap());
        assert_eq!((window.ack(c), window.watermark()), (AckResult::Waiting, None));
        assert_eq!(window.holding_back(), Some(&10));
        assert_eq!((window.ack(a), window.watermark()), (AckResult::Advanced, Some(&10)));
        assert_eq!((window.ack(a), window.ack(c)), (AckResult::Duplicate, AckResult::Duplicate));
        assert_eq!((window.ack(b), window.watermark()), (AckResult::Advanced, Some(&30)));
        assert!(window.is_drained());
        assert_eq!(window.ack(AckTicket(3)), AckResult::NotIssued);
    }

    #[test]
    fn a_full_gap_stops_issuing_until_the_oldest_is_acked() {
        let mut window = AckWindow::new(2);
        let [a, b] = [1, 2].map(|position| window.issue(position).unwrap());
        assert_eq!(window.ack(b), AckResult::Waiting);
        assert_eq!(window.issue(3), Err(NotIssued::GapFull { max_gap: 2 }));
        assert_eq!(window.ack(a), AckResult::Advanced);
        assert!(window.issue(3).is_ok());
    }

    #[test]
    fn positions_ascend_also_across_a_resume() {
        let mut window = AckWindow::resume(5, 2);
        assert_eq!(window.issue(5), Err(NotIssued::NotAscending));
        window.issue(6).unwrap();
        assert_eq!(window.issue(6), Err(NotIssued::NotAscending));
        assert_eq!(window.watermark(), Some(&5));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Issue,
        Ack(usize),
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn the_watermark_is_the_end_of_the_acked_prefix(
            max_gap in 1_usize..20,
            steps in proptest::collection::vec(
                prop_oneof![Just(Step::Issue), any::<usize>().prop_map(Step::Ack)], 0..200),
        ) {
            let mut window = AckWindow::new(max_gap);
            // The naive model: everything ever issued, with its ack state.
            let mut model: Vec<(u64, AckTicket, bool)> = Vec::new();
            for step in steps {
                let prefix = model.iter().take_while(|(_, _, acked)| *acked).count();
                match step {
                    Step::Issue => {
                        let position = model.len() as u64 * 10;
                        match window.issue(position) {
                            Ok(ticket) => model.push((position, ticket, false)),
                            Err(why) => {
                                prop_assert_eq!(why, NotIssued::GapFull { max_gap });
                                prop_assert_eq!(model.len() - prefix, max_gap);
                            }
                        }
                    }
                    Step::Ack(any) if !model.is_empty() => {
                        let at = any % model.len();
                        let want = match (model[at].2, at == prefix) {
                            (true, _) => AckResult::Duplicate,
                            (false, true) => AckResult::Advanced,
                            (false, false) => AckResult::Waiting,
                        };
                        prop_assert_eq!(window.ack(model[at].1), want);
                        model[at].2 = true;
                    }
                    Step::Ack(_) => {}
                }
                let prefix = model.iter().take_while(|(_, _, acked)| *acked).count();
                let watermark = prefix.checked_sub(1).map(|last| &model[last].0);
                prop_assert_eq!(window.watermark(), watermark);
                prop_assert_eq!(window.gap(), model.len() - prefix);
                prop_assert!(window.gap() <= max_gap);
            }
        }
    }
}
