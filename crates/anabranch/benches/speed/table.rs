//! Measurements over several rounds, and the table that is printed.

/// The values of one case over all rounds, in ascending order.
#[derive(Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// Returns the minimum, which other processes disturbed the least.
    pub(crate) fn least(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    /// Returns the median.
    pub(crate) fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Prints the head of a table of [`row`]s.
pub(crate) fn head(what: &str) {
    println!("\n{what:<46}{:>12}{:>12}{:>10}", "least, ns", "median, ns", "to bare");
}

/// Prints one case, compared with the plain SDK.
pub(crate) fn row(name: &str, rounds: &Rounds, bare: &Rounds) {
    let ratio = rounds.median() / bare.median();
    println!("{name:<46}{:>12.0}{:>12.0}{ratio:>9.2}x", rounds.least(), rounds.median());
}
