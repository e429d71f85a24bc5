//! Sequence numbers as text, one after another. Within a batch mostly the counter moves on by one,
//! and counting the digits up is far cheaper than writing 56 of them.

use anabranch_model::sequence::{SEQUENCE_NUMBER_MAX_DIGITS, SequenceNumber};

/// Digits of one of the three limbs that a number is kept in.
const LIMB_DIGITS: usize = SEQUENCE_NUMBER_MAX_DIGITS / 3;

/// The text of the number that was asked for last.
#[derive(Default)]
pub(crate) struct SequenceText {
    /// That number.
    number: Option<SequenceNumber>,
    /// Its digits.
    digits: Vec<u8>,
}

impl SequenceText {
    /// The digits of `next`.
    pub(crate) fn of(&mut self, next: SequenceNumber) -> &[u8] {
        if self.is_followed_by(next) {
            self.count_up();
        } else {
            self.digits.clear();
            next.write_digits(&mut self.digits);
        }
        self.number = Some(next);
        &self.digits
    }

    /// Whether only the counter moves, by one. Below a high limb the counter has all its digits.
    fn is_followed_by(&self, next: SequenceNumber) -> bool {
        let [high, counter, low] = next.limbs();
        let before = counter.checked_sub(1).map(|counter| [high, counter, low]);
        high > 0 && self.number.is_some_and(|last| Some(last.limbs()) == before)
    }

    /// Adds one to the counter. The next number exists, so the carry ends within its digits.
    fn count_up(&mut self) {
        let end = self.digits.len() - LIMB_DIGITS;
        for digit in self.digits[end - LIMB_DIGITS..end].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counting_up_gives_the_digits_that_writing_gives(
            runs in prop::collection::vec(
                (0..3_u64, prop_oneof![0..2_000_u64, Just(9_999_999_999_999_999_000)], 0..3_u64),
                1..4,
            ),
        ) {
            let mut text = SequenceText::default();
            for (high, start, low) in runs {
                for step in 0..150 {
                    // Some steps repeat or leave one out.
                    let counter = start + step + u64::from(step % 50 == 7);
                    let number = SequenceNumber::from_limbs(high, counter, low).unwrap();
                    let digits = text.of(number).to_vec();
                    prop_assert_eq!(String::from_utf8(digits).unwrap(), number.to_string());
                }
            }
        }
    }
}
