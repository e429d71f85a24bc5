//! Configuration keys of Java's daemon and their support here.

/// Support for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeySupport {
    /// The key has the same or the closest possible effect as in Java.
    Honoured,
    /// The key has no effect, for this reason.
    Ignored(&'static str),
}

/// A known key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PropertyKey {
    /// Key name.
    pub name: &'static str,
    /// Support for the key.
    pub effect: KeySupport,
}

const fn honoured(name: &'static str) -> PropertyKey {
    PropertyKey { name, effect: KeySupport::Honoured }
}

const fn nothing(name: &'static str, why: &'static str) -> PropertyKey {
    PropertyKey { name, effect: KeySupport::Ignored(why) }
}

const NO_THREADS: &str = "the daemon has no such thread pool";
const ON_DEMAND: &str = "the lease table is created with on-demand billing";
const OWN_TABLES: &str = "there is no table besides the lease table";
const BY_COUNT: &str = "leases are balanced by count, as in KCL 2.x";
const NO_LEADER: &str = "a fleet with KCL 2.x's protocol has no leader that assigns leases";
const BY_RETRY: &str = "failed calls are retried with growing pauses until they succeed";
const NO_MIGRATION: &str = "a table of KCL 3.x is taken over once nothing in it changes";
const GATES: &str = "a child shard starts as soon as its parents' rows have ended";

/// All known keys, in the order in which `--check-config` prints them.
pub const KEYS: &[PropertyKey] = &[
    honoured("executableName"),
    honoured("applicationName"),
    honoured("streamName"),
    honoured("streamArn"),
    honoured("regionName"),
    honoured("AwsCredentialsProvider"),
    honoured("AwsCredentialsProviderDynamoDB"),
    honoured("AwsCredentialsProviderCloudWatch"),
    honoured("kinesisEndpoint"),
    honoured("dynamoDBEndpoint"),
    honoured("cloudWatchEndpoint"),
    honoured("initialPositionInStream"),
    honoured("initialPositionInStreamExtended"),
    // Leases.
    honoured("leaseStore"),
    honoured("tableName"),
    honoured("workerId"),
    honoured("workerIdentifier"),
    honoured("failoverTimeMillis"),
    honoured("maxLeasesForWorker"),
    honoured("maxLeasesToStealAtOneTime"),
    honoured("enablePriorityLeaseAssignment"),
    honoured("shardSyncIntervalMillis"),
    honoured("leaseTableDeletionProtectionEnabled"),
    honoured("leaseTablePitrEnabled"),
    nothing("leaseAssignmentIntervalMillis", NO_LEADER),
    nothing(
        "cleanupLeasesUponShardCompletion",
        "rows of finished shards are always deleted by KCL's rule",
    ),
    nothing("ignoreUnexpectedChildShards", "an inconsistent list of shards is always read again"),
    nothing("initialLeaseTableReadCapacity", ON_DEMAND),
    nothing("initialLeaseTableWriteCapacity", ON_DEMAND),
    nothing("leaseTableScanTotalSegments", "the lease table is scanned in one segment"),
    nothing("maxLeaseRenewalThreads", NO_THREADS),
    nothing("listShardsBackoffTimeInMillis", BY_RETRY),
    nothing("maxListShardsRetryAttempts", BY_RETRY),
    nothing("parentShardPollIntervalMillis", GATES),
    nothing("shardPrioritization", GATES),
    nothing(
        "skipShardSyncAtWorkerInitializationIfLeasesExist",
        "the first list of shards is short, and is always requested",
    ),
    nothing("schedulerInitializationBackoffTimeMillis", BY_RETRY),
    nothing("clientVersionConfig", NO_MIGRATION),
    nothing("migrateAllEntitiesToLeaseTable", NO_MIGRATION),
    nothing("tableMigrationCompleteBakeTimeSeconds", NO_MIGRATION),
    nothing("gracefulLeaseHandoffTimeoutMillis", "leases are taken as in KCL 2.x"),
    nothing("isGracefulLeaseHandoffEnabled", "leases are taken as in KCL 2.x"),
    nothing("inMemoryWorkerMetricsCaptureFrequencyMillis", BY_COUNT),
    nothing("workerMetricsReporterFreqInMillis", BY_COUNT),
    nothing("noOfPersistedMetricsPerWorkerMetrics", BY_COUNT),
    nothing("disableWorkerMetrics", BY_COUNT),
    nothing("maxThroughputPerHostKBps", BY_COUNT),
    nothing("dampeningPercentage", BY_COUNT),
    nothing("reBalanceThresholdPercentage", BY_COUNT),
    nothing("allowThroughputOvershoot", BY_COUNT),
    nothing("varianceBalancingFrequency", BY_COUNT),
    nothing("workerMetricsEMAAlpha", BY_COUNT),
    nothing("staleWorkerMetricsEntryCleanupDuration", BY_COUNT),
    nothing("workerMetricsTableName", OWN_TABLES),
    nothing("workerMetricsBillingMode", OWN_TABLES),
    nothing("workerMetricsReadCapacity", OWN_TABLES),
    nothing("workerMetricsWriteCapacity", OWN_TABLES),
    nothing("workerMetricsPointInTimeRecoveryEnabled", OWN_TABLES),
    nothing("workerMetricsDeletionProtectionEnabled", OWN_TABLES),
    nothing("workerMetricsTags", OWN_TABLES),
    nothing("coordinatorStateTableName", OWN_TABLES),
    nothing("coordinatorStateBillingMode", OWN_TABLES),
    nothing("coordinatorStateReadCapacity", OWN_TABLES),
    nothing("coordinatorStateWriteCapacity", OWN_TABLES),
    nothing("coordinatorStatePointInTimeRecoveryEnabled", OWN_TABLES),
    nothing("coordinatorStateDeletionProtectionEnabled", OWN_TABLES),
    nothing("coordinatorStateTags", OWN_TABLES),
    // Records.
    honoured("retrievalMode"),
    honoured("maxRecords"),
    honoured("idleTimeBetweenReadsInMillis"),
    honoured("callProcessRecordsEvenForEmptyRecordList"),
    honoured("fanoutConfig.consumerName"),
    nothing(
        "fanoutConfig.consumerArn",
        "the consumer is found by its name: set fanoutConfig.consumerName",
    ),
    nothing("fanoutConfig.maxDescribeStreamSummaryRetries", BY_RETRY),
    nothing("fanoutConfig.maxDescribeStreamConsumerRetries", BY_RETRY),
    nothing("fanoutConfig.registerStreamConsumerRetries", BY_RETRY),
    nothing("fanoutConfig.retryBackoffMillis", BY_RETRY),
    nothing("retryGetRecordsInSeconds", "each call has its own timeout"),
    nothing("maxGetRecordsThreadPool", NO_THREADS),
    nothing(
        "millisBehindLatestThresholdForReducedTps",
        "an idle shard is polled less often automatically",
    ),
    // Children.
    honoured("taskBackoffTimeMillis"),
    honoured("timeoutInSeconds"),
    honoured("shutdownGraceMillis"),
    honoured("onChildFailure"),
    honoured("childExitMillis"),
    honoured("childStderr"),
    honoured("shutdownMessages"),
    nothing("processingLanguage", "it only changes the user agent of Java's calls"),
    nothing("maxActiveThreads", NO_THREADS),
    nothing("logWarningForTaskAfterMillis", "a shard without progress is always reported"),
    nothing(
        "validateSequenceNumberBeforeCheckpointing",
        "a checkpoint is always checked against the records given",
    ),
    // Metrics.
    honoured("metricsLevel"),
    honoured("metricsBufferTimeMillis"),
    honoured("metricsMaxQueueSize"),
    honoured("metricsEnabledDimensions"),
];

/// Prefixes of Java's SDK builder keys, below which any SDK setting may appear.
pub(super) const BUILDERS: [&str; 6] = [
    "kinesisClient.",
    "dynamoDbClient.",
    "cloudWatchClient.",
    "kinesisCredentialsProvider.",
    "dynamoDBCredentialsProvider.",
    "cloudWatchCredentialsProvider.",
];

/// Supported builder settings, each with its equivalent key.
pub(super) const BUILDER_KEYS: [(&str, &str); 6] = [
    ("kinesisClient.region", "regionName"),
    ("kinesisClient.endpointOverride", "kinesisEndpoint"),
    ("dynamoDbClient.region", "regionName"),
    ("dynamoDbClient.endpointOverride", "dynamoDBEndpoint"),
    ("cloudWatchClient.region", "regionName"),
    ("cloudWatchClient.endpointOverride", "cloudWatchEndpoint"),
];

/// Returns the canonical key for a name in the file. Credentials keys are case-insensitive, as in
/// Java. Polling settings may have the prefix `pollingConfig`.
pub(super) fn canonical(name: &str) -> String {
    let same =
        |key: &&PropertyKey| key.name.starts_with("Aws") && key.name.eq_ignore_ascii_case(name);
    if let Some(key) = KEYS.iter().find(same) {
        return key.name.to_owned();
    }
    if let Some((_, key)) = BUILDER_KEYS.iter().find(|(builder, _)| *builder == name) {
        return (*key).to_owned();
    }
    let polling = name.strip_prefix("pollingConfig.");
    polling.filter(|name| find(name).is_some()).unwrap_or(name).to_owned()
}

/// Returns a known key by name.
pub(super) fn find(name: &str) -> Option<&'static PropertyKey> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the known key with the most similar name, if it is similar enough.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let distance =
        |key: &PropertyKey| strsim::damerau_levenshtein(&lower, &key.name.to_lowercase());
    let (key, distance) = KEYS.iter().map(|key| (key, distance(key))).min_by_key(|(_, d)| *d)?;
    (distance <= 2 + name.len() / 6).then_some(key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_known_once() {
        let mut names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }

    #[test]
    fn names_of_the_file_stand_for_known_keys() {
        for (name, key) in [
            ("AWSCredentialsProvider", "AwsCredentialsProvider"),
            ("awsCredentialsProviderDynamoDB", "AwsCredentialsProviderDynamoDB"),
            ("pollingConfig.maxRecords", "maxRecords"),
            ("pollingConfig.other", "pollingConfig.other"),
            ("kinesisClient.endpointOverride", "kinesisEndpoint"),
            ("streamname", "streamname"),
        ] {
            assert_eq!(canonical(name), key);
        }
    }

    #[test]
    fn a_mistyped_key_finds_the_nearest_one() {
        for (name, expected) in [
            ("failoverTimeMilis", Some("failoverTimeMillis")),
            ("FailoverTimeMillis", Some("failoverTimeMillis")),
            ("streamname", Some("streamName")),
            ("timeoutSeconds", Some("timeoutInSeconds")),
            ("somethingOfOurOwn", None),
        ] {
            assert_eq!(nearest(name), expected, "{name}");
        }
    }
}
