//! A stream that is identified by its name or by its ARN is one stream.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, TestWorker};
use anabranch::lease::{
    CoordinatorSettings, CoordinatorStartError, LeaseStore, StopResult, StreamSettings,
};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, StreamChange, Write, WriteOutcome};
use anabranch_model::position::StartPosition;

const ARN: &str = "arn:aws:kinesis:us-east-1:000000000000:stream/s";

fn settings(worker: &str, streams: &[&str]) -> CoordinatorSettings {
    let settings = CoordinatorSettings::new(worker).with_lease_time_ms(LEASE_TIME_MS);
    streams.iter().fold(settings, |settings, stream| {
        settings.with_stream(*stream, StartPosition::TrimHorizon)
    })
}

impl LeaseFleet {
    /// Returns the number of rows under a name.
    fn rows_under(&self, name: &str) -> usize {
        self.table().leases(&StreamName::from(name)).count()
    }

    async fn named(&self, worker: &str, stream: &str) -> TestWorker {
        let worker = self.try_worker(settings(worker, &[stream])).await.unwrap();
        self.until("both are held", 20_000, || worker.holds() == 2).await;
        worker
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_and_an_arn_use_the_same_rows() {
    for (before, after) in [(STREAM, ARN), (ARN, STREAM)] {
        let fleet = LeaseFleet::native(2);
        let first = fleet.named("a", before).await;
        assert_eq!(first.stop(0).await, StopResult::Left);
        let rows = (fleet.rows_under(STREAM), fleet.rows_under(ARN));
        assert_eq!(rows, (2, 0), "new rows lie under the plain name");
        let second = fleet.named("b", after).await;
        let rows = (fleet.rows_under(STREAM), fleet.rows_under(ARN));
        assert_eq!(rows, (2, 0), "{before}, then {after}");
        assert_eq!(fleet.table().application().streams.len(), 1, "{before}, then {after}");
        drop(second);
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_lie_under_an_arn_are_used_by_whatever_name() {
    for name in [ARN, STREAM] {
        let fleet = LeaseFleet::native(2);
        let created_ms = fleet.engine.clock().now_ms();
        let noted = StreamChange::NoteStart { t0_ms: created_ms, created_ms };
        let noted = fleet.store.write(&Write::stream(&ARN.into(), noted)).await.unwrap();
        assert!(matches!(noted, WriteOutcome::Done(_)), "{noted:?}");
        let worker = fleet.named("a", name).await;
        let rows = (fleet.rows_under(STREAM), fleet.rows_under(ARN));
        assert_eq!(rows, (0, 2), "named {name}");
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_under_both_names_is_refused() {
    for layout in [Layout::Native, Layout::Kcl] {
        for streams in [[STREAM, ARN], [ARN, STREAM], [STREAM, STREAM]] {
            let fleet = LeaseFleet::new(layout, 2);
            let refused = fleet.try_worker(settings("a", &streams)).await.err();
            let twice = matches!(refused, Some(CoordinatorStartError::DuplicateStream { .. }));
            assert!(twice, "{layout:?} {streams:?}: {refused:?}");
        }
    }
    for (before, after) in [(STREAM, ARN), (ARN, STREAM)] {
        let fleet = LeaseFleet::native(2);
        let worker = fleet.named("a", before).await;
        let again = StreamSettings { name: after.into(), start: StartPosition::TrimHorizon };
        let refused = worker.coordinator.add_stream(again).await;
        assert!(
            matches!(refused, Err(CoordinatorStartError::DuplicateStream { .. })),
            "{refused:?}"
        );
        assert_eq!(worker.coordinator.remove_stream(&after.into(), 1_000).await, []);
        assert_eq!(worker.holds(), 0, "{before} is removed as {after}");
    }
}
