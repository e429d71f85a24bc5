//! Statistics of many values by name and dimensions, in bounded memory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Which metric, with its dimensions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct MetricSeries {
    /// KCL's name.
    pub(super) name: &'static str,
    /// KCL's unit.
    pub(super) unit: MetricUnit,
    /// Names and values, in KCL's order.
    pub(super) dimensions: Vec<(&'static str, Arc<str>)>,
}

/// What values count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum MetricUnit {
    Count,
    Milliseconds,
    Bytes,
}

/// What CloudWatch keeps of many values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Statistics {
    pub(super) count: f64,
    pub(super) sum: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Statistics {
    fn of(value: f64) -> Self {
        Self { count: 1.0, sum: value, least: value, most: value }
    }

    fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }
}

/// Statistics of the series that wait to be published.
#[derive(Debug)]
pub(super) struct MetricBuffer {
    /// How many series there may be.
    room: usize,
    /// The series.
    series: BTreeMap<MetricSeries, Statistics>,
    /// Values that found no room.
    dropped: u64,
}

impl MetricBuffer {
    pub(super) fn new(room: usize) -> Self {
        Self { room, series: BTreeMap::new(), dropped: 0 }
    }

    /// Adds a value.
    pub(super) fn add(&mut self, series: MetricSeries, value: f64) {
        self.merge(series, Statistics::of(value));
    }

    /// Adds what was taken before.
    pub(super) fn merge(&mut self, series: MetricSeries, statistics: Statistics) {
        let full = self.series.len() >= self.room;
        match self.series.get_mut(&series) {
            Some(known) => *known = known.with(statistics),
            None if full => self.dropped = self.dropped.saturating_add(1),
            None => {
                self.series.insert(series, statistics);
            }
        }
    }

    /// Takes everything.
    pub(super) fn take(&mut self) -> Vec<(MetricSeries, Statistics)> {
        std::mem::take(&mut self.series).into_iter().collect()
    }

    /// Values that found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &'static str) -> MetricSeries {
        MetricSeries {
            name,
            unit: MetricUnit::Count,
            dimensions: vec![("Operation", "ProcessTask".into())],
        }
    }

    #[test]
    fn values_of_one_series_become_one_set_and_no_more_series_than_there_is_room_for() {
        let mut tally = MetricBuffer::new(2);
        for (name, value) in [("a", 3.0), ("b", 1.0), ("a", -1.0), ("c", 9.0), ("a", 4.0)] {
            tally.add(series(name), value);
        }
        assert_eq!(tally.dropped(), 1, "c found no room");
        let taken = tally.take();
        let a = Statistics { count: 3.0, sum: 6.0, least: -1.0, most: 4.0 };
        assert_eq!(taken, [(series("a"), a), (series("b"), Statistics::of(1.0))]);
        // What could not be published goes with what came since.
        tally.add(series("a"), 10.0);
        for (series, statistics) in taken {
            tally.merge(series, statistics);
        }
        let again = tally.take();
        assert_eq!(again[0].1, Statistics { count: 4.0, sum: 16.0, least: -1.0, most: 10.0 });
        assert_eq!(again.len(), 2);
    }
}
