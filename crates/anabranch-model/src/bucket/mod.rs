//! A token bucket with several dimensions, such as records and bytes.
//!
//! All arithmetic is in whole numbers: a rate of one token a second is one thousandth of a token
//! a millisecond, so levels are kept in thousandths and never drift.

/// Thousandths of a token in a token; also milliseconds in a second, which is the point of it.
const THOUSANDTHS: u64 = 1_000;

/// What one dimension allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Tokens that an idle bucket gathers at most.
    pub capacity: u64,
    /// Tokens that come in each second.
    pub per_second: u64,
}

/// A token bucket of `D` dimensions. It starts full.
///
/// A cost is taken from all dimensions or from none. A cost above the capacity passes when the
/// bucket is full and leaves a debt, so that a large record waits long but not for ever. Over any
/// time the bucket lets through at most its capacity, what came in, and one such debt.
#[derive(Debug, Clone)]
pub struct Bucket<const D: usize> {
    /// What each dimension allows.
    allowances: [Allowance; D],
    /// What each dimension holds, in thousandths of a token. Negative is debt.
    levels: [i128; D],
    /// Up to when incoming tokens are counted. It never goes back: a clock that does would
    /// otherwise bring in the same tokens twice.
    filled_until_ms: u64,
}

/// The answer to a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The cost passes. [`Bucket::take`] has taken it.
    Passed,
    /// It will pass after this many milliseconds, if nothing else is taken until then. Not 0.
    Wait {
        /// Milliseconds to wait.
        ms: u64,
    },
    /// It will not pass, because a dimension that lacks tokens gets none.
    Never,
}

impl<const D: usize> Bucket<D> {
    /// A full bucket.
    pub fn new(allowances: [Allowance; D], now_ms: u64) -> Self {
        let levels = allowances.map(|allowance| thousandths(allowance.capacity));
        Self { allowances, levels, filled_until_ms: now_ms }
    }

    /// Whether `cost` would pass now, and if not, when.
    pub fn admission(&self, now_ms: u64, cost: [u64; D]) -> Admission {
        self.admission_behind([0; D], now_ms, cost)
    }

    /// The same, once `ahead` has been taken. Only `cost` may be above the capacity: what is ahead
    /// of it counts whole, or any number of costs would pass a full bucket together.
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

    /// Milliseconds until `cost` passes; `None` if it never does.
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

    /// Takes `cost` whether it passes or not, for what is known only afterwards, such as the size of
    /// a reply. A debt delays what comes next.
    pub fn charge(&mut self, now_ms: u64, cost: [u64; D]) {
        self.fill(now_ms);
        for (level, cost) in self.levels.iter_mut().zip(cost) {
            *level = level.saturating_sub(thousandths(cost));
        }
    }

    /// Changes what the dimensions allow from now on. Debts stay; a level above its new capacity is
    /// cut to it.
    pub fn set_allowances(&mut self, now_ms: u64, allowances: [Allowance; D]) {
        self.fill(now_ms);
        self.allowances = allowances;
        for (level, allowance) in self.levels.iter_mut().zip(&self.allowances) {
            *level = (*level).min(thousandths(allowance.capacity));
        }
    }

    /// Counts the tokens that came in since the last time.
    fn fill(&mut self, now_ms: u64) {
        let ms = now_ms.saturating_sub(self.filled_until_ms);
        self.filled_until_ms += ms;
        for (level, allowance) in self.levels.iter_mut().zip(&self.allowances) {
            *level = filled(*level, allowance, ms);
        }
    }
}

/// A level after so many milliseconds.
fn filled(level: i128, allowance: &Allowance, ms: u64) -> i128 {
    let incoming = i128::from(ms).saturating_mul(i128::from(allowance.per_second));
    level.saturating_add(incoming).min(thousandths(allowance.capacity))
}

fn thousandths(tokens: u64) -> i128 {
    i128::from(tokens) * i128::from(THOUSANDTHS)
}

#[cfg(test)]
mod tests;
