//! Creation of the table by the first worker, and the wait until it can be used.

use super::native::keys::{PARTITION, SORT};
use super::preparation::PreparationWait;
use super::table::DynamoTable;
use crate::lease::StoreError;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, PointInTimeRecoverySpecification,
    PointInTimeRecoveryStatus, ProvisionedThroughput, ScalarAttributeType, TableDescription,
    TableStatus, Tag,
};
use std::collections::BTreeMap;

/// Time limit for a table to become ACTIVE, in milliseconds, the same as KCL's.
const ACTIVE_WITHIN_MS: u64 = 600_000;
const POLL_MS: u64 = 500;
/// Time for which reads may not find a table that is already ACTIVE, in milliseconds.
const SETTLED_WITHIN_MS: u64 = 60_000;
/// The version of global tables whose description does not name replicas.
const GLOBAL_TABLES_OF_2017: &str = "2017.11.29";

/// The billing mode of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Billing {
    /// Pay per request: no capacity to plan, and no cost while idle.
    #[default]
    OnDemand,
    /// Reserved capacity units per second.
    Provisioned {
        /// Read units per second.
        read_units: u32,
        /// Write units per second.
        write_units: u32,
    },
}

/// Properties of a table that the store creates. An existing table is not changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::lease) struct NewTable {
    pub(in crate::lease) billing: Billing,
    pub(in crate::lease) tags: BTreeMap<String, String>,
    pub(in crate::lease) deletion_protection: bool,
    pub(in crate::lease) point_in_time_recovery: bool,
    /// True if a table with replicas in other regions is permitted.
    pub(in crate::lease) one_region_writes: bool,
}

/// The key schema that a table must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lease) enum KeySchema {
    /// `pk` and `sk`.
    Native,
    /// `leaseKey`.
    Kcl,
}

/// Name of the key attribute of KCL's tables.
pub(in crate::lease) const LEASE_KEY: &str = "leaseKey";

impl KeySchema {
    /// Returns the key attributes and their roles. All are strings.
    fn attributes(self) -> &'static [(&'static str, KeyType)] {
        match self {
            Self::Native => &[(PARTITION, KeyType::Hash), (SORT, KeyType::Range)],
            Self::Kcl => &[(LEASE_KEY, KeyType::Hash)],
        }
    }
}

impl DynamoTable {
    /// Creates the table unless it exists, and waits until it can be used.
    pub(in crate::lease) async fn provision(
        &self,
        schema: KeySchema,
        new: &NewTable,
    ) -> Result<(), StoreError> {
        let mut made = false;
        loop {
            match self.describe().await? {
                None if !made => {
                    self.preparation.note_absent();
                    made = self.create(schema, new).await?;
                }
                // Created, and not yet visible.
                None => {}
                Some(table) => {
                    self.check_schema(schema, &table)?;
                    if !new.one_region_writes {
                        self.check_regions(&table)?;
                    }
                    if is_usable(&table) {
                        break;
                    }
                }
            }
            if self.is_over(PreparationWait::Active, ACTIVE_WITHIN_MS) {
                let minutes = ACTIVE_WITHIN_MS / 60_000;
                let detail = format!("the table did not become ACTIVE within {minutes} minutes");
                return Err(StoreError::Unreachable { store: self.store(), detail, source: None });
            }
            self.clock.sleep(POLL_MS).await;
        }
        self.preparation.end(PreparationWait::Active);
        Ok(())
    }

    fn is_over(&self, wait: PreparationWait, within_ms: u64) -> bool {
        self.preparation.is_over(wait, within_ms, self.clock.now_ms())
    }

    /// Retries the first read while it does not find the table: DynamoDB may describe a table as
    /// ACTIVE shortly before reads find it.
    pub(in crate::lease) async fn wait_visible<T, F>(
        &self,
        read: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match read().await {
                Err(StoreError::Missing { .. })
                    if !self.is_over(PreparationWait::Settled, SETTLED_WITHIN_MS) =>
                {
                    self.clock.sleep(POLL_MS).await;
                }
                done => {
                    self.preparation.end(PreparationWait::Settled);
                    return done;
                }
            }
        }
    }

    /// Returns the service's description of the table, or `None` if there is no table.
    pub(in crate::lease) async fn describe(&self) -> Result<Option<TableDescription>, StoreError> {
        match self.reads.describe_table().table_name(&self.name).send().await {
            Ok(reply) => Ok(reply.table),
            Err(error) => match error.as_service_error() {
                Some(e) if e.is_resource_not_found_exception() => Ok(None),
                _ => Err(self.call("DescribeTable").read_error(&error)),
            },
        }
    }

    /// Creates the table. Returns false if another worker was faster.
    async fn create(&self, schema: KeySchema, new: &NewTable) -> Result<bool, StoreError> {
        // Retrying is safe: a repeated request finds that the table exists.
        let mut create = self.reads.create_table().table_name(&self.name);
        for (name, role) in schema.attributes() {
            let attribute = AttributeDefinition::builder().attribute_name(*name);
            let attribute = attribute.attribute_type(ScalarAttributeType::S);
            let element = KeySchemaElement::builder().attribute_name(*name).key_type(role.clone());
            create = create
                .attribute_definitions(attribute.build().expect("name and type are set"))
                .key_schema(element.build().expect("name and role are set"));
        }
        create = match new.billing {
            Billing::OnDemand => create.billing_mode(BillingMode::PayPerRequest),
            Billing::Provisioned { read_units, write_units } => {
                let units = ProvisionedThroughput::builder()
                    .read_capacity_units(read_units.into())
                    .write_capacity_units(write_units.into());
                create
                    .billing_mode(BillingMode::Provisioned)
                    .provisioned_throughput(units.build().expect("both units are set"))
            }
        };
        for (key, value) in &new.tags {
            let tag = Tag::builder().key(key).value(value);
            create = create.tags(tag.build().expect("key and value are set"));
        }
        if new.deletion_protection {
            create = create.deletion_protection_enabled(true);
        }
        match create.send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(CreateTableError::ResourceInUseException(_)) => Ok(false),
                _ => Err(self.call("CreateTable").read_error(&error)),
            },
        }
    }

    /// Switches point-in-time recovery on, unless it is on. DynamoDB refuses that for a while after
    /// it has created a table.
    pub(in crate::lease) async fn keep_backups(&self) -> Result<(), StoreError> {
        while !self.has_backups().await? {
            let on =
                PointInTimeRecoverySpecification::builder().point_in_time_recovery_enabled(true);
            let on = on.build().expect("the switch is set");
            let update = self.reads.update_continuous_backups().table_name(&self.name);
            let sent = update.point_in_time_recovery_specification(on).send().await;
            let Err(error) = sent else { return Ok(()) };
            let being_enabled = error.code() == Some("ContinuousBackupsUnavailableException");
            if !being_enabled || self.is_over(PreparationWait::Backups, ACTIVE_WITHIN_MS) {
                return Err(self.call("UpdateContinuousBackups").read_error(&error));
            }
            self.clock.sleep(POLL_MS).await;
        }
        Ok(())
    }

    async fn has_backups(&self) -> Result<bool, StoreError> {
        let describe = self.reads.describe_continuous_backups().table_name(&self.name);
        let reply = describe.send().await;
        let reply = reply.map_err(|e| self.call("DescribeContinuousBackups").read_error(&e))?;
        let backups = reply.continuous_backups_description;
        let recovery = backups.and_then(|backups| backups.point_in_time_recovery_description);
        let status = recovery.and_then(|recovery| recovery.point_in_time_recovery_status);
        Ok(status == Some(PointInTimeRecoveryStatus::Enabled))
    }

    /// Refuses a table that other regions can write: conditions hold in one region only, so each
    /// region would have its own owner for every shard.
    fn check_regions(&self, table: &TableDescription) -> Result<(), StoreError> {
        let replicas = table.replicas().iter().filter_map(|replica| replica.region_name());
        let mut regions = replicas.collect::<Vec<_>>().join(", ");
        if regions.is_empty() {
            if table.global_table_version() != Some(GLOBAL_TABLES_OF_2017) {
                return Ok(());
            }
            regions.push_str("other regions");
        }
        let detail = format!(
            "it is a global table with replicas in {regions}: conditional writes are safe within \
             one region only, so workers in two regions would read the same shard; use a table of \
             one region, or, if workers run only in this region, set `with_one_writing_region` or \
             append `?one-region` to the table name"
        );
        Err(StoreError::Unusable { store: self.store(), detail })
    }

    /// Refuses a table with another key schema.
    fn check_schema(&self, schema: KeySchema, table: &TableDescription) -> Result<(), StoreError> {
        let found = key_names(table);
        let wanted = schema.attributes().iter().map(|(name, _)| *name);
        if found.iter().map(String::as_str).eq(wanted.clone()) {
            return Ok(());
        }
        let wanted = wanted.collect::<Vec<_>>().join(", ");
        let what = match found.join(", ") {
            key if key == LEASE_KEY => "it is a KCL table; use the KCL layout for it".to_owned(),
            key if key == format!("{PARTITION}, {SORT}") => {
                "it is a table in the native layout, but a KCL application requires its own table"
                    .to_owned()
            }
            key => format!("its key is ({key}), so it is not a lease table"),
        };
        let detail = format!("{what}, or use another table name (expected key: ({wanted}))");
        Err(StoreError::ForeignSchema { store: self.store(), detail })
    }
}

/// Returns the key attributes, partition key first.
pub(in crate::lease) fn key_names(table: &TableDescription) -> Vec<String> {
    let mut elements = table.key_schema().to_vec();
    elements.sort_by_key(|element| element.key_type != KeyType::Hash);
    elements.into_iter().map(|element| element.attribute_name).collect()
}

fn is_usable(table: &TableDescription) -> bool {
    matches!(table.table_status(), Some(TableStatus::Active | TableStatus::Updating))
}
