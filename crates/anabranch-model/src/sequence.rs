//! Sequence numbers: decimal numbers of up to 57 digits (Kinesis uses 186 bits, 56 digits).

#![expect(clippy::cast_possible_truncation, reason = "digits: every cast value is below 100")]

use std::fmt;
use std::str::FromStr;

/// Number of digits in a limb, and the limb's base.
const LIMB_DIGITS: usize = 19;
const LIMB_BASE: u64 = 10_u64.pow(19);
const LIMBS: usize = 3;

/// Maximum number of digits of a sequence number.
pub const SEQUENCE_NUMBER_MAX_DIGITS: usize = LIMB_DIGITS * LIMBS;

/// A sequence number: ordered as an integer, 24 bytes in size. Prints the digits from which it was
/// parsed.
///
/// The value is stored as three limbs in base 10^19, highest first, and not as a binary number.
/// Parsing and printing then need no wide division, and both happen for each record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SequenceNumber([u64; LIMBS]);

impl SequenceNumber {
    /// The smallest sequence number, `0`.
    pub const ZERO: Self = Self([0; LIMBS]);

    /// Returns the number `high · 10^38 + middle · 10^19 + low`, or `None` if a part has more than
    /// 19 digits.
    pub fn from_limbs(high: u64, middle: u64, low: u64) -> Option<Self> {
        let limbs = [high, middle, low];
        limbs.iter().all(|limb| *limb < LIMB_BASE).then_some(Self(limbs))
    }

    /// Returns the parts that [`SequenceNumber::from_limbs`] takes.
    pub fn limbs(&self) -> [u64; LIMBS] {
        self.0
    }

    /// Parses ASCII digits. Returns `None` if there are none, too many, a non-digit, or a leading
    /// zero.
    pub fn from_digits(digits: &[u8]) -> Option<Self> {
        let leading_zero = digits.first() == Some(&b'0') && digits.len() > 1;
        if digits.is_empty() || digits.len() > SEQUENCE_NUMBER_MAX_DIGITS || leading_zero {
            return None;
        }
        let mut limbs = [0; LIMBS];
        for (limb, chunk) in limbs.iter_mut().rev().zip(digits.rchunks(LIMB_DIGITS)) {
            *limb = limb_of(chunk)?;
        }
        Some(Self(limbs))
    }

    /// Appends the decimal digits to `out`.
    pub fn write_digits(&self, out: &mut Vec<u8>) {
        let mut digits = [b'0'; SEQUENCE_NUMBER_MAX_DIGITS];
        for (limb, chunk) in self.0.iter().zip(digits.chunks_exact_mut(LIMB_DIGITS)) {
            write_limb(*limb, chunk);
        }
        let leading = digits.iter().take_while(|d| **d == b'0').count();
        out.extend_from_slice(&digits[leading.min(SEQUENCE_NUMBER_MAX_DIGITS - 1)..]);
    }
}

/// Fills `chunk` with the digits of `limb`, two at a time. Leading zeros are not written.
fn write_limb(mut limb: u64, chunk: &mut [u8]) {
    const PAIRS: &[u8; 200] = &digit_pairs();
    let mut at = chunk.len();
    while limb >= 10 {
        let pair = (limb % 100) as usize * 2;
        limb /= 100;
        at -= 2;
        chunk[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if limb > 0 {
        chunk[at - 1] = b'0' + limb as u8;
    }
}

/// Returns "00", "01", … "99" concatenated.
const fn digit_pairs() -> [u8; 200] {
    let mut pairs = [0; 200];
    let mut i = 0;
    while i < 100 {
        pairs[i * 2] = b'0' + (i / 10) as u8;
        pairs[i * 2 + 1] = b'0' + (i % 10) as u8;
        i += 1;
    }
    pairs
}

/// Error: a text is not a sequence number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a sequence number: it must be a decimal number without leading zeros, \
     at most {SEQUENCE_NUMBER_MAX_DIGITS} digits"
)]
pub struct ParseSequenceNumberError(String);

impl FromStr for SequenceNumber {
    type Err = ParseSequenceNumberError;

    fn from_str(text: &str) -> Result<Self, ParseSequenceNumberError> {
        let number = Self::from_digits(text.as_bytes());
        number.ok_or_else(|| ParseSequenceNumberError(text.chars().take(80).collect()))
    }
}

/// Returns the value of up to nineteen ASCII digits, or `None` if one is not a digit.
fn limb_of(digits: &[u8]) -> Option<u64> {
    let (head, eights) = digits.split_at(digits.len() % 8);
    let mut value = 0;
    for digit in head {
        value = value * 10 + u64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    for eight in eights.chunks_exact(8) {
        let eight = u64::from_le_bytes(eight.try_into().expect("a chunk has eight bytes"));
        value = value * 100_000_000 + eight_digits(eight)?;
    }
    Some(value)
}

/// Returns the value of eight ASCII digits, the first in the lowest byte. Combines pairs, then
/// fours, then all eight, because a chain of eight multiplications takes three times as long.
fn eight_digits(digits: u64) -> Option<u64> {
    const SIXES: u64 = 0x0606_0606_0606_0606;
    const HIGH_HALVES: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    const THREES: u64 = 0x3030_3030_3030_3030;
    // A digit has a 3 in its high half, and still has after adding six.
    let high = digits & HIGH_HALVES;
    let high_plus_six = digits.wrapping_add(SIXES) & HIGH_HALVES;
    if high != THREES || high_plus_six != THREES {
        return None;
    }
    let ones = digits & !HIGH_HALVES;
    let pairs = (ones.wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul(10_000 << 32 | 1) >> 32)
}

impl fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = Vec::with_capacity(SEQUENCE_NUMBER_MAX_DIGITS);
        self.write_digits(&mut digits);
        f.pad(std::str::from_utf8(&digits).expect("digits are ASCII"))
    }
}

impl fmt::Debug for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGEST_OF_186_BITS: &str = "98079714615416886934934209737619787751599303819750539263";

    #[test]
    fn texts_that_are_no_sequence_numbers_are_refused() {
        for text in ["", "00", "01", "-1", "+1", "1 ", "1e3", "LATEST", "٣"] {
            assert!(text.parse::<SequenceNumber>().is_err(), "{text:?}");
        }
        assert!("9".repeat(57).parse::<SequenceNumber>().is_ok());
        assert!("9".repeat(58).parse::<SequenceNumber>().is_err());
        assert!(LARGEST_OF_186_BITS.parse::<SequenceNumber>().is_ok());
    }

    #[test]
    fn limbs_of_twenty_digits_are_refused() {
        assert!(SequenceNumber::from_limbs(0, LIMB_BASE, 0).is_none());
        let largest = SequenceNumber::from_limbs(LIMB_BASE - 1, LIMB_BASE - 1, LIMB_BASE - 1);
        assert_eq!(largest.unwrap().to_string(), "9".repeat(57));
    }

    proptest! {
        #[test]
        fn every_digit_comes_back(text in "0|[1-9][0-9]{0,56}") {
            prop_assert_eq!(text.parse::<SequenceNumber>().unwrap().to_string(), text);
        }

        #[test]
        fn order_is_the_order_of_integers(a in "0|[1-9][0-9]{0,56}", b in "0|[1-9][0-9]{0,56}") {
            let by_value = (a.len(), &a).cmp(&(b.len(), &b));
            let (a, b): (SequenceNumber, SequenceNumber) = (a.parse().unwrap(), b.parse().unwrap());
            prop_assert_eq!(a.cmp(&b), by_value);
        }
    }
}
