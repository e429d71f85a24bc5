//! A token bucket with several dimensions, such as records and bytes.
//!
//! All arithmetic uses integers. One token per second is one thousandth of a token per millisecond,
//! so levels are stored in thousandths and never drift.

/// Thousandths of a token in a token. Equal to the milliseconds in a second, which keeps rates
/// exact.
const THOUSANDTHS: u64 = 1_000;

/// Limits of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Maximum number of tokens that an idle bucket accumulates.
    pub capacity: u64,
    /// Tokens added per second.
    pub per_second: u64,
}

/// A token bucket of `D` dimensions. It starts full.
///
/// A cost is taken from all dimensions or from none. A cost above the capacity passes when the
/// bucket is full and leaves a debt, so that a large record waits long but not indefinitely. Over
/// any period the bucket lets through at most its capacity, the tokens added, and one such debt.
#[derive(Debug, Clone)]
pub struct Bucket<const D: usize> {
    allowances: [Allowance; D],
    /// Level of each dimension, in thousandths of a token. Negative is debt.
    levels: [i128; D],
    /// Time up to which added tokens are counted. It never goes back. Otherwise a clock that does
    /// would add the same tokens twice.
    filled_until_ms: u64,
}

/// Answer to a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The cost passes. [`Bucket::take`] has taken it.
    Passed,
    /// The cost passes after this time, if nothing else is taken until then.
    Wait {
        /// Milliseconds to wait, at least 1.
        ms: u64,
    },
    /// The cost never passes, because a dimension that lacks tokens gets none.
    Never,
}

impl<const D: usize> Bucket<D> {
    /// Creates a full bucket.
    pub fn new(allowances: [Allowance; D], now_ms: u64) -> Self {
        let levels = allowances.map(|allowance| thousandths(allowance.capacity));
        Self { allowances, levels, filled_until_ms: now_ms }
    }

    /// Returns the admission of `cost` now: passed, the time to wait, or never.
    pub fn admission(&self, now_ms: u64, cost: [u64; D]) -> Admission {
        self.admission_behind([0; D], now_ms, cost)
    }

    /// Returns the admission of `cost` once `ahead` has been taken. Only `cost` may exceed the
    /// capacity; `ahead` counts in full. Otherwise any number of costs would pass a full bucket
    /// together.
    pub fn admission_behind(&self, ahead: [u64; D], now_ms: u64, cost: [u64; D]) -> Admission {
        let from_ms = now_ms.max(self.filled_until_ms);
        let mut at_ms = now_ms;
        let dimensions = self.allowances.iter().zip(&self.levels).zip(ahead).zip(cost);
        for (((allowance, level), ahead), cost) in dimensions {
            let level = filled(*level, allowance, from_ms - self.filled_until_ms);
            let lacking = thousandths(cost.min(allowance.capacity)) + thousandths(ahead) - level;
            if lacking <= 0 {
                continue;
            }
            if allowance.per_second == 0 {
                return Admission::Never;
            }
            let ms = lacking.unsigned_abs().div_ceil(u128::from(allowance.per_second));
            let ms = u64::try_from(ms).unwrap_or(u64::MAX);
            at_ms = at_ms.max(from_ms.saturating_add(ms));
        }
        match at_ms - now_ms {
            0 => Admission::Passed,
            ms => Admission::Wait { ms },
        }
    }

    /// Returns the milliseconds until `cost` passes, or `None` if it never does.
    pub fn wait_ms(&self, now_ms: u64, cost: [u64; D]) -> Option<u64> {
        match self.admission(now_ms, cost) {
            Admission::Passed => Some(0),
            Admission::Wait { ms } => Some(ms),
            Admission::Never => None,
        }
    }

    /// Takes `cost` if it passes.
    pub fn take(&mut self, now_ms: u64, cost: [u64; D]) -> Admission {
        let admission = self.admission(now_ms, cost);
        if admission == Admission::Passed {
            self.charge(now_ms, cost);
        }
        admission
    }

    /// Takes `cost` unconditionally, for a cost that is known only afterwards, such as the size of
    /// a reply. A debt delays later costs.
    pub fn charge(&mut self, now_ms: u64, cost: [u64; D]) {
        self.fill(now_ms);
        for (level, cost) in self.levels.iter_mut().zip(cost) {
            *level = level.saturating_sub(thousandths(cost));
        }
    }

    /// Changes the limits from now on. Debts remain; a level above its new capacity is cut to it.
    pub fn set_allowances(&mut self, now_ms: u64, allowances: [Allowance; D]) {
        self.fill(now_ms);
        self.allowances = allowances;
        for (level, allowance) in self.levels.iter_mut().zip(&self.allowances) {
            *level = (*level).min(thousandths(allowance.capacity));
        }
    }

    /// Adds the tokens since the last fill.
    fn fill(&mut self, now_ms: u64) {
        let ms = now_ms.saturating_sub(self.filled_until_ms);
        self.filled_until_ms += ms;
        for (level, allowance) in self.levels.iter_mut().zip(&self.allowances) {
            *level = filled(*level, allowance, ms);
        }
    }
}

/// Returns the level after `ms` milliseconds.
fn filled(level: i128, allowance: &Allowance, ms: u64) -> i128 {
    let incoming = i128::from(ms).saturating_mul(i128::from(allowance.per_second));
    level.saturating_add(incoming).min(thousandths(allowance.capacity))
}

fn thousandths(tokens: u64) -> i128 {
    i128::from(tokens) * i128::from(THOUSANDTHS)
}

#[cfg(test)]
mod tests;
