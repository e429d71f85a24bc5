//! Leases in a DynamoDB table, in the native layout or in KCL's.
//!
//! ```text
//! Write ── native | kcl ──▶ WriteRequest ── table | transaction ──▶ WriteAttempt
//!   Applied ──▶ Done(row)    Refused(old row) ── pure rules ──▶ Refused(why)    Lost ──▶ Unknown
//! ```
//!
//! A write is only sent again if it was certainly not applied: after a conflict with a transaction
//! in progress, or after a refusal by a row that has changed since. A lost reply is `Unknown`, and
//! the caller reads back.
//!
//! The credentials need these actions on the table:
//!
//! - `DescribeTable`, `GetItem`, `Query`, `Scan`, `PutItem`, `UpdateItem` and `DeleteItem`. KCL's
//!   layout needs no `Query`.
//! - `CreateTable` if the store has to create it, with `TagResource` for tags.
//! - `DescribeContinuousBackups` and `UpdateContinuousBackups` for backups.
//!
//! KCL's layout also reads the table `NAME-CoordinatorState` if it is permitted to.

mod item;
mod expression;
mod failure;
mod meter;
mod table;
mod transaction;
mod preparation;
mod provision;
mod native;
mod kcl;

pub use kcl::{KclStreamId, ParseKclStreamIdError};
pub use meter::StoreUsage;
pub use provision::Billing;

use crate::clock::{Clock, Rng};
use crate::http_client::HttpClient;
use crate::lease::store::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseKey, LeaseListing, WorkerId, WorkerRow, Write,
    WriteOutcome,
};
use anabranch_model::position::StartPosition;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use kcl::KclRows;
use kcl::keys::KclStreams;
use native::NativeRows;
use provision::{KeySchema, NewTable};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use table::DynamoTable;

/// Default time limit of one call. Below a third of the default lease time, so that there is time
/// for another heartbeat after one that hangs.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of attempts of a read.
const READ_ATTEMPTS: u32 = 3;

/// Leases in a DynamoDB table. Clones share everything.
///
/// ```no_run
/// # async fn doc(config: aws_types::SdkConfig) {
/// use anabranch::lease::DynamoDbStore;
/// // A table of its own, made at the start.
/// let leases = DynamoDbStore::native(&config, "orders-leases").with_tag("team", "orders");
/// // The table of a KCL 1.x or 2.x application, beside its Java workers or in their place.
/// let leases = DynamoDbStore::kcl(&config, "orders-consumer");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DynamoDbStore {
    rows: LayoutRows,
    /// Properties of the table, if the store has to create it.
    new_table: NewTable,
}

#[derive(Clone, Debug)]
enum LayoutRows {
    Native(NativeRows),
    Kcl(KclRows),
}

impl DynamoDbStore {
    /// Opens a table in the native layout: a worker's heartbeat is one write, however many leases
    /// it owns. The table belongs to one application: two applications need two tables.
    pub fn native(config: &SdkConfig, table: impl Into<String>) -> Self {
        Self::of(LayoutRows::Native(NativeRows::new(open(config, table.into()))))
    }

    /// Opens the table of a KCL application that reads one stream. KCL names it after the
    /// application.
    pub fn kcl(config: &SdkConfig, table: impl Into<String>) -> Self {
        Self::of_kcl(config, table.into(), KclStreams::Single)
    }

    /// Opens the table of a KCL application that reads several streams. `identify` returns KCL's
    /// name of a stream. A stream for which it returns `None` is refused.
    pub fn kcl_multi_stream(
        config: &SdkConfig,
        table: impl Into<String>,
        identify: impl Fn(&StreamName) -> Option<KclStreamId> + Send + Sync + 'static,
    ) -> Self {
        Self::of_kcl(config, table.into(), KclStreams::Multi(Arc::new(identify)))
    }

    fn of_kcl(config: &SdkConfig, table: String, streams: KclStreams) -> Self {
        let start = StartPosition::TrimHorizon;
        let (table, starts) = (open(config, table), kcl::StartPositions::default());
        let pace = kcl::ScanSchedule::default();
        Self::of(LayoutRows::Kcl(KclRows { table, streams, start, starts, pace }))
    }

    fn of(rows: LayoutRows) -> Self {
        Self { rows, new_table: NewTable::default() }
    }

    /// Sets the position at which the application starts. In KCL's table a row that says
    /// `AT_TIMESTAMP` leaves the time to the workers, and this is that time. A consumer passes its
    /// own start to the store, so only code that reads the table without a consumer needs this.
    /// Default: `TRIM_HORIZON`, with which such rows can't be read.
    #[must_use]
    pub fn with_start(mut self, start: StartPosition) -> Self {
        if let LayoutRows::Kcl(rows) = &mut self.rows {
            rows.start = start;
        }
        self
    }

    /// Sets the time limit of one call. It should allow several heartbeats in a lease time.
    /// Default: 3 seconds.
    #[must_use]
    pub fn with_call_timeout(mut self, timeout: Duration) -> Self {
        let table = match &mut self.rows {
            LayoutRows::Native(rows) => &mut rows.table,
            LayoutRows::Kcl(rows) => &mut rows.table,
        };
        for client in [&mut table.reads, &mut table.writes] {
            let config = client.config().to_builder().timeout_config(call_timeout(timeout));
            *client = aws_sdk_dynamodb::Client::from_conf(config.build());
        }
        self
    }

    /// Sets the billing mode of the table, if the store has to create it. Default: on demand.
    #[must_use]
    pub fn with_billing(mut self, billing: Billing) -> Self {
        self.new_table.billing = billing;
        self
    }

    /// Adds a tag to the table, if the store has to create it.
    #[must_use]
    pub fn with_tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.new_table.tags.insert(key.into(), value.into());
        self
    }

    /// Enables deletion protection of the table, if the store has to create it. Default: off.
    #[must_use]
    pub fn with_deletion_protection(mut self) -> Self {
        self.new_table.deletion_protection = true;
        self
    }

    /// Enables point-in-time recovery. Default: off.
    ///
    /// In the native layout the table records that this was done. So a failed attempt is repeated
    /// at a later start, and backups that an operator switches off afterwards stay off. KCL's table
    /// has no place for that record. There it is only done by a start that finds no table, however
    /// many attempts that start takes.
    #[must_use]
    pub fn with_point_in_time_recovery(mut self) -> Self {
        self.new_table.point_in_time_recovery = true;
        self
    }

    /// Permits a global table whose replicas in other regions no worker uses. Default: such a table
    /// is refused.
    ///
    /// Conditional writes hold in one region only: with workers in two regions each shard would
    /// have two owners.
    #[must_use]
    pub fn with_one_writing_region(mut self) -> Self {
        self.new_table.one_region_writes = true;
        self
    }

    /// Returns the usage of this store and its clones since it was created.
    pub fn usage(&self) -> StoreUsage {
        self.table().meter.usage()
    }

    async fn prepare_once(&self) -> Result<(), StoreError> {
        let (table, backups) = (self.table(), self.new_table.point_in_time_recovery);
        match &self.rows {
            LayoutRows::Native(rows) => {
                table.provision(KeySchema::Native, &self.new_table).await?;
                table.wait_visible(|| rows.check_format()).await?;
                if backups {
                    rows.keep_backups_once(table.preparation.is_new()).await?;
                }
            }
            LayoutRows::Kcl(_) => {
                table.provision(KeySchema::Kcl, &self.new_table).await?;
                let key = kcl::keys::any_key();
                table.wait_visible(|| table.get(key.clone())).await?;
                if backups && table.preparation.is_new() {
                    table.keep_backups().await?;
                }
            }
        }
        Ok(())
    }

    fn table(&self) -> &DynamoTable {
        match &self.rows {
            LayoutRows::Native(rows) => &rows.table,
            LayoutRows::Kcl(rows) => &rows.table,
        }
    }
}

impl LeaseStore for DynamoDbStore {
    fn layout(&self) -> Layout {
        match &self.rows {
            LayoutRows::Native(_) => Layout::Native,
            LayoutRows::Kcl(_) => Layout::Kcl,
        }
    }

    fn poll_interval(&self) -> u64 {
        match &self.rows {
            LayoutRows::Native(_) => crate::lease::store::DEFAULT_POLL_INTERVAL,
            LayoutRows::Kcl(rows) => rows.pace.look_ms(),
        }
    }

    fn note_start(&self, stream: &StreamName, start: StartPosition) {
        if let LayoutRows::Kcl(rows) = &self.rows {
            rows.starts.note(stream, start);
        }
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        let prepared = self.prepare_once().await;
        self.table().preparation.after(&prepared);
        prepared
    }

    async fn probe(&self) -> Result<KclProbe, StoreError> {
        match &self.rows {
            LayoutRows::Native(_) => Ok(KclProbe::default()),
            LayoutRows::Kcl(rows) => rows.probe().await,
        }
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => rows.application().await,
            LayoutRows::Kcl(_) => Ok(ApplicationFacts::default()),
        }
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => rows.look().await,
            LayoutRows::Kcl(_) => {
                Ok(StorePoll { version: None, workers: Vec::new(), unreadable: Vec::new() })
            }
        }
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => rows.list(stream).await,
            LayoutRows::Kcl(rows) => rows.list(stream).await,
        }
    }

    async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => {
                let mut leases = BTreeMap::new();
                for stream in streams {
                    leases.insert(stream.clone(), rows.list(stream).await?);
                }
                Ok(leases)
            }
            LayoutRows::Kcl(rows) => rows.list_recent(streams).await,
        }
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => rows.get(key).await,
            LayoutRows::Kcl(rows) => rows.get(key).await,
        }
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => rows.worker(id).await,
            LayoutRows::Kcl(_) => Ok(None),
        }
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        match &self.rows {
            LayoutRows::Native(rows) => rows.write(write).await,
            LayoutRows::Kcl(rows) => rows.write(write).await,
        }
    }
}

fn open(config: &SdkConfig, name: String) -> DynamoTable {
    let mut builder = aws_sdk_dynamodb::config::Builder::from(config);
    builder = builder.timeout_config(call_timeout(CALL_TIMEOUT));
    if config.http_client().is_none() {
        builder = builder.http_client(HttpClient::from_env_deferred());
    }
    let client = |retry| {
        let config = builder.clone().retry_config(retry).build();
        aws_sdk_dynamodb::Client::from_conf(config)
    };
    DynamoTable {
        name,
        reads: client(RetryConfig::standard().with_max_attempts(READ_ATTEMPTS)),
        writes: client(RetryConfig::disabled()),
        clock: Clock::machine(),
        chance: Rng::of_system(),
        meter: meter::UsageMeter::default(),
        preparation: preparation::TablePreparation::default(),
        has_region: config.region().is_some(),
    }
}

fn call_timeout(timeout: Duration) -> TimeoutConfig {
    TimeoutConfig::builder().operation_attempt_timeout(timeout).build()
}
