//! Tests of properties files and the resulting configuration.

use super::*;
use anabranch::consumer::FetchMode;
use anabranch::lease::StoreAddress;
use anabranch_model::position::StartPosition;

const LEAST: &str = "\
executableName = python app.py
applicationName = app
streamName = orders
AwsCredentialsProvider = DefaultCredentialsProvider
";

fn judged(more: &str) -> Result<LoadedConfig, Vec<String>> {
    judge(properties::parse(format!("{LEAST}{more}").as_bytes()).expect("a properties file"))
}

fn config(more: &str) -> Config {
    judged(more).expect("a good file").config
}

/// Checks that a line, added to the four required ones, gives this warning.
fn check_warning(line: &str, expected: &str) {
    let warnings = judged(line).expect("a good file").warnings;
    assert_eq!(warnings, [expected], "{line}");
}

fn check_wrong(line: &str, expected: &str) {
    let wrong = judged(line).expect_err(line);
    assert_eq!(wrong, [expected], "{line}");
}

#[test]
fn without_a_word_the_defaults_are_javas() {
    let config = config("");
    assert_eq!(config.command, ["python", "app.py"]);
    assert_eq!((config.application.as_str(), config.stream.as_str()), ("app", "orders"));
    assert_eq!(config.lease_store, StoreAddress::Kcl(Some("app".to_owned())));
    assert_eq!(config.start, StartPosition::Latest);
    assert_eq!((config.fetch, config.max_records), (FetchMode::FanOut, 10_000));
    assert_eq!((config.lease_time_ms, config.max_leases, config.max_steal), (10_000, None, 1));
    assert_eq!((config.silence_ms, config.idle_poll_ms, config.backoff_ms), (None, 1_500, 500));
    assert_eq!(config.metrics.level, MetricsLevel::Detailed);
}

#[test]
fn without_a_word_children_are_treated_better_than_by_java() {
    let better = config("");
    assert_eq!((better.grace_ms, better.on_child_failure), (20_000, OnChildFailure::Restart));
    let java = config("shutdownGraceMillis = 0\nonChildFailure = exit\nchildStderr = inherit\n");
    assert_eq!((java.grace_ms, java.on_child_failure), (0, OnChildFailure::Exit));
    assert!(java.inherit_stderr);
}

#[test]
fn the_sample_of_the_python_worker_is_taken_as_it_is() {
    let sample = "\
# Important: streamArn takes precedence over streamName if both are set
executableName = sample_kclpy_app.py
streamArn = arn:aws:kinesis:us-east-5:000000000000:stream/kclpysample
streamName = other
applicationName = PythonKCLSample
AwsCredentialsProvider = DefaultCredentialsProvider
processingLanguage = python/3.8
initialPositionInStream = TRIM_HORIZON
regionName = us-east-1
";
    let loaded = judge(properties::parse(sample.as_bytes()).unwrap()).unwrap();
    assert_eq!(loaded.config.stream, "kclpysample");
    assert_eq!(loaded.config.region.as_deref(), Some("us-east-1"));
    assert_eq!(loaded.config.start, StartPosition::TrimHorizon);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("processingLanguage has no effect"));
}

#[test]
fn settings_are_honoured() {
    let config = config(
        "\
awscredentialsproviderdynamodb = ProfileCredentialsProvider|leases
kinesisEndpoint = http://localhost:4567
dynamoDBEndpoint = dynamodb.example
tableName = t
workerId = w1
failoverTimeMillis = 5000
maxLeasesForWorker = 3
maxLeasesToStealAtOneTime = 2
initialPositionInStreamExtended = 1636609142
pollingConfig.maxRecords = 100
idleTimeBetweenReadsInMillis = 250
callProcessRecordsEvenForEmptyRecordList = true
timeoutInSeconds = 7
shutdownGraceMillis = 5000
shutdownMessages = kcl1
leaseTablePitrEnabled = true
metricsLevel = none
metricsEnabledDimensions = Operation, ShardId
",
    );
    assert_eq!(config.dynamodb.credentials[0].to_string(), "ProfileCredentialsProvider|leases");
    assert_eq!(config.kinesis.endpoint.as_deref(), Some("http://localhost:4567"));
    assert_eq!(config.dynamodb.endpoint.as_deref(), Some("https://dynamodb.example"));
    assert_eq!(config.lease_store, StoreAddress::Kcl(Some("t".to_owned())));
    assert_eq!((config.worker.as_deref(), config.lease_time_ms), (Some("w1"), 5_000));
    assert_eq!((config.max_leases, config.max_steal), (Some(3), 2));
    assert_eq!(config.start, StartPosition::AtTimestamp(1_636_609_142_000));
    assert_eq!((config.max_records, config.idle_poll_ms), (100, 250));
    assert_eq!(config.fetch, FetchMode::Poll, "a setting of polling asks for polling");
    assert!(config.empty_calls && config.point_in_time_recovery && !config.deletion_protection);
    assert_eq!((config.silence_ms, config.grace_ms), (Some(7_000), 5_000));
    assert_eq!(config.shutdown_messages, crate::protocol::ShutdownMessages::Kcl1);
    assert_eq!(config.metrics.level, MetricsLevel::None);
    assert!(config.metrics.dimensions.contains("ShardId"));
}

#[test]
fn a_lease_store_can_be_chosen() {
    for (value, expected) in [
        ("dynamodb", StoreAddress::Kcl(Some("app".to_owned()))),
        ("dynamodb-native", StoreAddress::DynamoDb("app-leases".to_owned())),
        ("postgres://u:p@h/d", StoreAddress::Postgres("postgres://u:p@h/d".to_owned())),
        ("sqlite:/var/l.db", StoreAddress::Sqlite("/var/l.db".into())),
        ("sqlite:///var/l.db", StoreAddress::Sqlite("/var/l.db".into())),
        ("memory", StoreAddress::Memory),
    ] {
        assert_eq!(config(&format!("leaseStore = {value}\n")).lease_store, expected, "{value}");
    }
}

#[test]
fn what_has_no_effect_and_what_is_unknown_is_named() {
    check_warning(
        "maxActiveThreads = 5",
        "line 5: maxActiveThreads has no effect: the daemon has no such thread pool",
    );
    check_warning(
        "failoverTimeMilis = 5",
        "line 5: failoverTimeMilis is not a known property: did you mean failoverTimeMillis?",
    );
    check_warning("zzz = 1", "line 5: zzz is not a known property");
    check_warning(
        "kinesisClient.apiCallTimeout = 1",
        "line 5: kinesisClient.apiCallTimeout has no effect: of the SDK's own settings only region \
         and endpointOverride are used",
    );
    check_warning(
        "streamName = b",
        "line 5: streamName is also set on line 3: the last one is used",
    );
    check_warning(
        "idleTimeBetweenReadsInMillis = 100",
        "line 5: idleTimeBetweenReadsInMillis is 100, below the minimum: 200 is used",
    );
}

#[test]
fn bad_values_are_refused_with_the_way_out() {
    check_wrong(
        "failoverTimeMillis = ten",
        "line 5: failoverTimeMillis is \"ten\": it must be a whole number",
    );
    check_wrong(
        "initialPositionInStream = NEWEST",
        "line 5: initialPositionInStream is \"NEWEST\": it must be one of LATEST, TRIM_HORIZON",
    );
    check_wrong(
        "leaseStore = redis",
        "line 5: leaseStore is \"redis\": it must be dynamodb, dynamodb-native, postgres://…, \
         sqlite:PATH or memory",
    );
    check_wrong(
        "streamArn = arn:aws:kinesis:x",
        "line 5: streamArn is \"arn:aws:kinesis:x\": it must be \
         arn:aws:kinesis:REGION:ACCOUNT:stream/NAME",
    );
    let wrong = judge(Vec::new()).unwrap_err();
    let missing = ["executableName", "applicationName", "streamName", "AwsCredentialsProvider"];
    for (said, key) in wrong.iter().zip(missing) {
        assert!(said.starts_with(&format!("{key} is missing")), "{said}");
    }
    assert_eq!(wrong.len(), missing.len());
}

#[test]
fn every_honoured_key_is_read_and_shown() {
    let all: Vec<String> = KEYS
        .iter()
        .filter(|key| key.effect == KeySupport::Honoured)
        .map(|key| {
            let value = match key.name {
                "streamArn" => "arn:aws:kinesis:us-east-1:000000000000:stream/x",
                name if name.starts_with("Aws") => "DefaultCredentialsProvider",
                name if name.ends_with("Endpoint") => "http://x",
                "initialPositionInStream" => "LATEST",
                "leaseStore" => "dynamodb",
                "retrievalMode" => "POLLING",
                "onChildFailure" => "exit",
                "childStderr" => "log",
                "shutdownMessages" => "kcl2",
                "metricsLevel" => "NONE",
                name if name.ends_with("Enabled") || name.starts_with("enable") => "true",
                name if name.ends_with("List") => "true",
                name if name.contains("Millis") || name.contains("max") => "1234",
                name if name.ends_with("Seconds") || name.ends_with("Size") => "1234",
                "initialPositionInStreamExtended" => "1234",
                _ => "x",
            };
            format!("{} = {value}", key.name)
        })
        .collect();
    let all = all.join("\n");
    let loaded = judge(properties::parse(all.as_bytes()).unwrap()).expect(&all);
    for key in KEYS.iter().filter(|key| key.effect == KeySupport::Honoured) {
        // Of two names for one setting, one is enough.
        let other = ["workerIdentifier", "initialPositionInStream"].contains(&key.name);
        let shown = loaded.rows.iter().any(|row| row.key == key.name);
        assert!(shown || other, "{} is honoured, but nothing reads it", key.name);
    }
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn the_report_shows_every_value_with_its_origin_and_no_secret() {
    let loaded = judged(
        "AwsCredentialsProviderDynamoDB = KclStaticCredentialsProvider|AKIA|s3cret\n\
         leaseStore = postgres://u:pa55@db/leases\nzzz = 1\n",
    )
    .unwrap();
    let report = loaded.report(Path::new("app.properties")).to_string();
    for part in [
        "executableName ",
        "app.properties:1\n",
        "failoverTimeMillis ",
        "  10000 ",
        "  default\n",
        "postgres://u@db/leases",
        "KclStaticCredentialsProvider|AKIA|…",
        "warning: line 7: zzz is not a known property\n",
    ] {
        assert!(report.contains(part), "{part:?} is in\n{report}");
    }
    assert!(!report.contains("s3cret") && !report.contains("pa55"), "{report}");
}
