//! Daemon settings and their conversion from properties.

use super::reading::{PropertyReader, ValueOrigin};
use crate::child::ChildSettings;
use crate::credentials::{self, Provider};
use crate::protocol::ShutdownMessages;
use anabranch::cloudwatch::MetricsLevel;
use anabranch::consumer::FetchMode;
use anabranch::lease::StoreAddress;
use anabranch_model::position::StartPosition;
use std::collections::BTreeSet;

/// Shortest pause between two reads of a shard: the service allows five reads per second.
const LEAST_IDLE_MS: u64 = 200;
/// Default grace period for the children at shutdown.
const GRACE_MS: u64 = 20_000;
/// Default time for a child to exit after its input was closed.
const EXIT_MS: u64 = 10_000;

/// Settings of a daemon. Durations are in milliseconds.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the file by itself")]
pub struct Config {
    /// Program of a child and its arguments.
    pub command: Vec<String>,
    /// Application name.
    pub application: String,
    /// Stream name.
    pub stream: String,
    /// AWS region, if set.
    pub region: Option<String>,
    /// Region of the stream's ARN, used if no other source sets one.
    pub arn_region: Option<String>,
    /// Kinesis endpoint and credentials.
    pub kinesis: Service,
    /// DynamoDB endpoint and credentials.
    pub dynamodb: Service,
    /// CloudWatch endpoint and credentials.
    pub cloudwatch: Service,
    /// Start position if the application has no checkpoint.
    pub start: StartPosition,
    /// Address of the lease store.
    pub lease_store: StoreAddress,
    /// Worker id, if set.
    pub worker: Option<String>,
    /// Silence after which other workers take this worker's leases.
    pub lease_time_ms: u64,
    /// Maximum leases for this worker. `None` means no limit.
    pub max_leases: Option<usize>,
    /// Maximum leases stolen at once.
    pub max_steal: usize,
    /// True if leases that have been free for long are taken first.
    pub very_old_first: bool,
    /// Interval between comparisons of the lease table with the stream's shards.
    pub audit_ms: u64,
    /// True if a newly created lease table gets deletion protection.
    pub deletion_protection: bool,
    /// True if a newly created lease table gets point-in-time recovery.
    pub point_in_time_recovery: bool,
    /// Fetch mode: polling or fan-out.
    pub fetch: FetchMode,
    /// Name of the fan-out consumer. Default: the application name.
    pub fan_out_name: Option<String>,
    /// Maximum records per `processRecords` call.
    pub max_records: usize,
    /// Pause between two reads of an idle shard.
    pub idle_poll_ms: u64,
    /// True if children also receive empty batches.
    pub empty_calls: bool,
    /// First pause before a failed child is restarted.
    pub backoff_ms: u64,
    /// Longest silence of a child with an open request. `None` means no limit.
    pub silence_ms: Option<u64>,
    /// Grace period for the children at shutdown. 0 stops at once and releases no lease, as Java
    /// does.
    pub grace_ms: u64,
    /// Reaction to the failure of a child.
    pub on_child_failure: OnChildFailure,
    /// Time for a child to exit after its input was closed.
    pub exit_ms: u64,
    /// True if children inherit the daemon's standard error.
    pub inherit_stderr: bool,
    /// Protocol version of the messages that end a shard.
    pub shutdown_messages: ShutdownMessages,
    /// Settings for CloudWatch metrics.
    pub metrics: MetricsSettings,
}

/// Endpoint and credentials of an AWS service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Service {
    /// Endpoint URL, if not AWS's own.
    pub endpoint: Option<String>,
    /// Credentials providers. The first with credentials is used.
    pub credentials: Vec<Provider>,
}

/// Reaction to the failure of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnChildFailure {
    /// Restart the child. Other shards are not affected.
    Restart,
    /// Exit the daemon, as Java does.
    Exit,
}

/// Settings for CloudWatch metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsSettings {
    /// Level of detail.
    pub level: MetricsLevel,
    /// Flush interval in milliseconds.
    pub every_ms: u64,
    /// Maximum number of queued metrics.
    pub queue: usize,
    /// Enabled dimensions. Empty enables all.
    pub dimensions: BTreeSet<String>,
}

impl Config {
    /// Returns the settings for the children.
    pub fn child(&self) -> ChildSettings {
        ChildSettings {
            command: self.command.clone(),
            silence_ms: self.silence_ms,
            exit_ms: self.exit_ms,
            inherit_stderr: self.inherit_stderr,
        }
    }
}

/// Reads all settings. Returns `None` only after recording an error.
pub(super) fn read(from: &mut PropertyReader) -> Option<Config> {
    let executable = from.required("executableName", "the program that handles the records");
    let command = ChildSettings::words(executable.as_deref().unwrap_or_default());
    let application = from.required("applicationName", "the name of the lease table");
    let (stream, arn_region) = stream(from);
    let kinesis_credentials = credentials(from, "AwsCredentialsProvider");
    if kinesis_credentials.is_none() {
        from.wrong(
            "AwsCredentialsProvider is missing: set it to DefaultCredentialsProvider".to_owned(),
        );
    }
    let kinesis_credentials = kinesis_credentials.unwrap_or_default();
    let service = |from: &mut PropertyReader, endpoint, credentials_key| {
        let own = credentials(from, credentials_key);
        Service {
            endpoint: self::endpoint(from, endpoint),
            credentials: own.unwrap_or_else(|| kinesis_credentials.clone()),
        }
    };
    let dynamodb = service(from, "dynamoDBEndpoint", "AwsCredentialsProviderDynamoDB");
    let cloudwatch = service(from, "cloudWatchEndpoint", "AwsCredentialsProviderCloudWatch");
    let kinesis =
        Service { endpoint: endpoint(from, "kinesisEndpoint"), credentials: kinesis_credentials };
    let lease_store = lease_store(from, application.as_deref().unwrap_or_default());
    Some(Config {
        command,
        region: from.text("regionName"),
        arn_region,
        kinesis,
        dynamodb,
        cloudwatch,
        start: start(from),
        worker: worker(from),
        lease_time_ms: from.number("failoverTimeMillis", 10_000, 1_000),
        max_leases: max_leases(from),
        max_steal: from.number("maxLeasesToStealAtOneTime", 1, 1),
        very_old_first: from.flag("enablePriorityLeaseAssignment", true),
        audit_ms: from.number("shardSyncIntervalMillis", 60_000, 1_000),
        deletion_protection: from.flag("leaseTableDeletionProtectionEnabled", false),
        point_in_time_recovery: from.flag("leaseTablePitrEnabled", false),
        fetch: fetch(from),
        fan_out_name: from.text("fanoutConfig.consumerName"),
        max_records: from.number("maxRecords", 10_000, 1),
        idle_poll_ms: from.number("idleTimeBetweenReadsInMillis", 1_500, LEAST_IDLE_MS),
        empty_calls: from.flag("callProcessRecordsEvenForEmptyRecordList", false),
        backoff_ms: from.number("taskBackoffTimeMillis", 500, 1),
        silence_ms: silence(from),
        grace_ms: grace(from),
        on_child_failure: from.one_of(
            "onChildFailure",
            &[("restart", OnChildFailure::Restart), ("exit", OnChildFailure::Exit)],
        ),
        exit_ms: from.number("childExitMillis", EXIT_MS, 1),
        inherit_stderr: from.one_of("childStderr", &[("log", false), ("inherit", true)]),
        shutdown_messages: from.one_of(
            "shutdownMessages",
            &[("kcl2", ShutdownMessages::Kcl2), ("kcl1", ShutdownMessages::Kcl1)],
        ),
        metrics: metrics(from),
        application: application?,
        stream: stream?,
        lease_store,
    })
}

/// Returns the stream's name and the region of its ARN. `streamArn` takes precedence over
/// `streamName`.
fn stream(from: &mut PropertyReader) -> (Option<String>, Option<String>) {
    if let Some((arn, line)) = from.given("streamArn") {
        let parts: Vec<&str> = arn.splitn(6, ':').collect();
        let name = match parts.as_slice() {
            ["arn", _, "kinesis", region, account, resource]
                if !region.is_empty() && account.len() == 12 =>
            {
                resource
                    .strip_prefix("stream/")
                    .filter(|name| !name.is_empty() && !name.contains('/'))
            }
            _ => None,
        };
        let Some(name) = name else {
            from.wrong(format!(
                "line {line}: streamArn is {arn:?}: it must be \
                 arn:aws:kinesis:REGION:ACCOUNT:stream/NAME"
            ));
            return (None, None);
        };
        from.show("streamArn", &arn, ValueOrigin::Line(line));
        from.show("streamName", name, ValueOrigin::Key("streamArn"));
        return (Some(name.to_owned()), parts.get(3).map(|region| (*region).to_owned()));
    }
    let name = from.text("streamName");
    if name.is_none() {
        from.wrong("streamName is missing: set it, or streamArn, to the stream to read".to_owned());
    }
    (name, None)
}

fn credentials(from: &mut PropertyReader, key: &'static str) -> Option<Vec<Provider>> {
    let (text, line) = from.given(key)?;
    match credentials::parse(&text) {
        Ok(parsed) => {
            for warning in parsed.warnings {
                from.warn(format!("line {line}: {key}: {warning}"));
            }
            let shown: Vec<String> = parsed.providers.iter().map(ToString::to_string).collect();
            from.show(key, shown.join(","), ValueOrigin::Line(line));
            Some(parsed.providers)
        }
        Err(error) => {
            from.wrong(format!("line {line}: {key}: {error}"));
            Some(Vec::new())
        }
    }
}

fn endpoint(from: &mut PropertyReader, key: &'static str) -> Option<String> {
    let (text, line) = from.given(key)?;
    // Java assumes HTTPS for an address without a scheme.
    let url = if text.contains("://") { text } else { format!("https://{text}") };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        from.wrong(format!("line {line}: {key} is {url:?}: it must be an http or https address"));
    }
    from.show(key, &url, ValueOrigin::Line(line));
    Some(url)
}

fn start(from: &mut PropertyReader) -> StartPosition {
    if let Some((text, line)) = from.given("initialPositionInStreamExtended") {
        match text.parse::<u64>() {
            Ok(seconds) => {
                from.show("initialPositionInStreamExtended", seconds, ValueOrigin::Line(line));
                return StartPosition::AtTimestamp(seconds.saturating_mul(1_000));
            }
            Err(_) => from.wrong(format!(
                "line {line}: initialPositionInStreamExtended is {text:?}: it must be seconds since 1970"
            )),
        }
    }
    from.one_of(
        "initialPositionInStream",
        &[("LATEST", StartPosition::Latest), ("TRIM_HORIZON", StartPosition::TrimHorizon)],
    )
}

fn worker(from: &mut PropertyReader) -> Option<String> {
    from.text("workerId").or_else(|| from.text("workerIdentifier"))
}

fn max_leases(from: &mut PropertyReader) -> Option<usize> {
    let most = i32::MAX as usize;
    let leases = from.number("maxLeasesForWorker", most, 1);
    (leases < most).then_some(leases)
}

/// Reads the lease store. The default is KCL's table, as in Java; other stores must be configured.
fn lease_store(from: &mut PropertyReader, application: &str) -> StoreAddress {
    let table = from.given("tableName");
    let given = from.given("leaseStore");
    let choice = given.as_ref().map_or("dynamodb", |(text, _)| text);
    let named = table.as_ref().map(|(name, _)| name.clone());
    let store = match choice.to_ascii_lowercase().as_str() {
        "dynamodb" => StoreAddress::Kcl(Some(named.unwrap_or_else(|| application.to_owned()))),
        "dynamodb-native" => {
            StoreAddress::DynamoDb(named.unwrap_or_else(|| format!("{application}-leases")))
        }
        "memory" => StoreAddress::Memory,
        _ => {
            let Ok(store @ (StoreAddress::Sqlite(_) | StoreAddress::Postgres(_))) = choice.parse()
            else {
                from.wrong(format!(
                    "line {}: leaseStore is {:?}: it must be dynamodb, dynamodb-native, \
                     postgres://…, sqlite:PATH or memory",
                    given.as_ref().map_or(0, |(_, line)| *line),
                    // The part after the scheme may contain a password.
                    choice.split("//").next().unwrap_or_default()
                ));
                return StoreAddress::Memory;
            };
            store
        }
    };
    let shown = match &store {
        StoreAddress::Kcl(_) => "dynamodb".to_owned(),
        StoreAddress::DynamoDb(_) => "dynamodb-native".to_owned(),
        other => other.to_string(),
    };
    from.show(
        "leaseStore",
        shown,
        given.map_or(ValueOrigin::Default, |(_, line)| ValueOrigin::Line(line)),
    );
    if let Some(name) = store.table(application) {
        let origin =
            table.map_or(ValueOrigin::Key("applicationName"), |(_, line)| ValueOrigin::Line(line));
        from.show("tableName", name, origin);
    } else if let Some((_, line)) = table {
        from.warn(format!("line {line}: tableName has no effect: leases are not in DynamoDB"));
    }
    store
}

/// Reads the fetch mode. As in Java, `DEFAULT` means polling if a polling setting is present, else
/// fan-out.
fn fetch(from: &mut PropertyReader) -> FetchMode {
    const POLLING: [&str; 5] = [
        "maxRecords",
        "idleTimeBetweenReadsInMillis",
        "retryGetRecordsInSeconds",
        "maxGetRecordsThreadPool",
        "millisBehindLatestThresholdForReducedTps",
    ];
    let mode = from.one_of(
        "retrievalMode",
        &[
            ("DEFAULT", None),
            ("FANOUT", Some(FetchMode::FanOut)),
            ("POLLING", Some(FetchMode::Poll)),
        ],
    );
    mode.unwrap_or_else(|| {
        let polls = POLLING.iter().any(|key| from.given(key).is_some());
        if polls { FetchMode::Poll } else { FetchMode::FanOut }
    })
}

fn silence(from: &mut PropertyReader) -> Option<u64> {
    let seconds: u64 = from.number("timeoutInSeconds", 0, 0);
    (seconds > 0).then(|| seconds.saturating_mul(1_000))
}

/// Reads the grace period. 0 is Java's default and stops at once; here it must be set explicitly.
fn grace(from: &mut PropertyReader) -> u64 {
    if let Some((text, line)) = from.given("shutdownGraceMillis")
        && text.parse() == Ok(0_u64)
    {
        from.show("shutdownGraceMillis", 0, ValueOrigin::Line(line));
        return 0;
    }
    from.number("shutdownGraceMillis", GRACE_MS, 1).min(3_600_000)
}

fn metrics(from: &mut PropertyReader) -> MetricsSettings {
    let level = from.one_of(
        "metricsLevel",
        &[
            ("DETAILED", MetricsLevel::Detailed),
            ("SUMMARY", MetricsLevel::Summary),
            ("NONE", MetricsLevel::None),
        ],
    );
    let every_ms = from.number("metricsBufferTimeMillis", 10_000, 100);
    let queue = from.number("metricsMaxQueueSize", 10_000, 1);
    let dimensions = from.text("metricsEnabledDimensions").unwrap_or_default();
    let dimensions = dimensions.split(',').map(str::trim).filter(|name| !name.is_empty());
    MetricsSettings { level, every_ms, queue, dimensions: dimensions.map(str::to_owned).collect() }
}
