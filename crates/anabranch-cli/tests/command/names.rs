//! Stream given by name or ARN, in every command that looks up its leases.

use crate::stage::CommandFixture;

const ARN: &str = "arn:aws:kinesis:us-east-1:000000000000:stream/orders";

#[test]
fn leases_are_found_by_the_name_and_by_the_arn() {
    for (before, after) in [("orders", ARN), (ARN, "orders")] {
        let stage = CommandFixture::start(&["orders:1"]);
        let leases = "--leases sqlite:leases.db";
        stage.run("put orders", "{\"key\":\"a\",\"data\":\"first\"}\n").ok();
        let mut running = stage.spawn(&format!("consume {before} --app app {leases}"));
        running.lines(1);
        running.stop().ok();
        stage.run("put orders", "{\"key\":\"a\",\"data\":\"second\"}\n").ok();
        let mut running = stage.spawn(&format!("consume {after} --app app {leases}"));
        let next = running.lines(1);
        assert!(next.iter().all(|line| line.contains("second")), "{after} begins anew: {next:?}");
        running.stop().ok();
        for name in [before, after] {
            for words in [format!("shards {name} --app app"), format!("leases app --stream {name}")]
            {
                let shown = stage.run(&format!("{words} {leases}"), "").ok();
                assert!(shown.out.contains("shardId-000000000000"), "{words}: {shown:?}");
            }
            let healthy = stage.run(&format!("doctor {name} app {leases} --watch 1s --json"), "");
            assert!(healthy.out.contains("no-worker"), "{name}: {healthy:?}");
            assert!(!healthy.out.contains("hole"), "{name}: {healthy:?}");
        }
    }
}
