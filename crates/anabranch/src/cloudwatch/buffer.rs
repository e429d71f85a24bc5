//! Statistics of metric values by series, in bounded memory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A metric with its dimensions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct MetricSeries {
    /// KCL's name of the metric.
    pub(super) name: &'static str,
    /// KCL's unit of the metric.
    pub(super) unit: MetricUnit,
    /// Names and values of the dimensions, in KCL's order.
    pub(super) dimensions: Vec<(&'static str, Arc<str>)>,
}

/// Unit of a metric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum MetricUnit {
    Count,
    Milliseconds,
    Bytes,
}

/// The statistics of a set of values, as CloudWatch stores them.
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
    /// Maximum number of series.
    room: usize,
    series: BTreeMap<MetricSeries, Statistics>,
    /// Values that were dropped because the buffer was full.
    dropped: u64,
}

impl MetricBuffer {
    pub(super) fn new(room: usize) -> Self {
        Self { room, series: BTreeMap::new(), dropped: 0 }
    }

    /// Adds one value to a series.
    pub(super) fn add(&mut self, series: MetricSeries, value: f64) {
        self.merge(series, Statistics::of(value));
    }

    /// Merges statistics into a series, for example after a failed publication.
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

    /// Removes and returns all series.
    pub(super) fn take(&mut self) -> Vec<(MetricSeries, Statistics)> {
        std::mem::take(&mut self.series).into_iter().collect()
    }

    /// Returns the number of values dropped because the buffer was full.
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
        // Values that could not be published are merged with later ones.
        tally.add(series("a"), 10.0);
        for (series, statistics) in taken {
            tally.merge(series, statistics);
        }
        let again = tally.take();
        assert_eq!(again[0].1, Statistics { count: 4.0, sum: 16.0, least: -1.0, most: 10.0 });
        assert_eq!(again.len(), 2);
    }
}
