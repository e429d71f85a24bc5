//! The probe of KCL's table and of its coordinator table, made before work begins and during it.

use super::KclRows;
use super::keys::KclStreams;
use super::row;
use crate::lease::StoreError;
use crate::lease::stores::dynamodb::item::{AttributeMap, ItemFields, MalformedItem, text};
use crate::lease::stores::dynamodb::provision::LEASE_KEY;
use crate::lease::stores::dynamodb::table::{DynamoTable, KeyRange};
use anabranch_model::lease::KclProbe;
use anabranch_model::lease::kcl_probe::{Kcl3Leader, LEADER_LOCK_MS};
use anabranch_model::position::StartPosition;
use std::collections::BTreeSet;

/// The index that every KCL 3.x worker creates.
const OWNER_INDEX: &str = "LeaseOwnerToLeaseKeyIndex";
/// Suffix of the application's name, for the table in which KCL 3.0 to 3.4 keep lock and version.
const COORDINATOR_SUFFIX: &str = "-CoordinatorState";
const COORDINATOR_KEY: &str = "key";
const LEADER: &str = "Leader";
const MIGRATION: &str = "Migration3.0";

impl KclRows {
    pub(crate) async fn probe(&self) -> Result<KclProbe, StoreError> {
        let mut survey = KclProbe { owners: Some(BTreeSet::new()), ..KclProbe::default() };
        let table = self.table.describe().await?;
        let indexes = table.as_ref().map_or(&[][..], |table| table.global_secondary_indexes());
        survey.has_owner_index = indexes.iter().any(|i| i.index_name() == Some(OWNER_INDEX));
        for item in self.table.scan(KeyRange::default()).await? {
            self.note(&mut survey, &item);
        }
        self.note_coordinator(&mut survey).await?;
        Ok(survey)
    }

    fn note(&self, survey: &mut KclProbe, item: &AttributeMap) {
        let fields = ItemFields(item);
        let key = fields.text(LEASE_KEY).ok().flatten().unwrap_or("?");
        let kind = fields.text(row::ENTITY_TYPE).ok().flatten();
        // The rows that KCL 3.5 keeps here are recognized by their keys, whatever their kind says.
        match (key, kind) {
            (LEADER, _) if fields.has("recordVersionNumber") => note_leader(survey, item),
            (MIGRATION, _) if fields.has("cv") => note_version(survey, item),
            _ => {}
        }
        let is_lease = row::is_lease(item) && fields.has(row::LEASE_COUNTER);
        let kind = kind.unwrap_or(if is_lease { "LEASE" } else { "?" });
        *survey.kinds.entry(kind.to_owned()).or_default() += 1;
        if !row::is_lease(item) || key == LEADER || key == MIGRATION {
            return;
        }
        let multi = matches!(self.streams, KclStreams::Multi(_));
        if fields.has(row::STREAM_NAME) != multi {
            survey.of_other_mode += 1;
        }
        if let Ok(Some(stream)) = fields.text(row::STREAM_NAME) {
            *survey.streams.entry(stream.to_owned()).or_default() += 1;
        }
        if let (Some(owners), Ok(Some(owner))) = (&mut survey.owners, fields.text(row::LEASE_OWNER))
            && !owner.is_empty()
        {
            owners.insert(owner.to_owned());
        }
        // Any start will do: the check is only whether the row can be read.
        match row::lease(&no_key(), item, StartPosition::AtTimestamp(0)) {
            Ok(lease) => {
                survey.counters.insert(key.to_owned(), lease.term);
            }
            Err(_) => survey.unreadable.push(key.to_owned()),
        }
    }

    /// Reads the coordinator table. A denied read is not an error here: an application of KCL 2.x
    /// has no such table, and no rights on it.
    async fn note_coordinator(&self, survey: &mut KclProbe) -> Result<(), StoreError> {
        let name = format!("{}{COORDINATOR_SUFFIX}", self.table.name);
        let table = DynamoTable { name, ..self.table.clone() };
        let key = |name: &str| AttributeMap::from([(COORDINATOR_KEY.into(), text(name))]);
        let leader = match table.get_if_there(key(LEADER)).await {
            Err(error @ StoreError::Denied { .. }) => {
                survey.coordinator_denied = Some(error.to_string());
                return Ok(());
            }
            leader => leader?,
        };
        if let Some(item) = leader {
            note_leader(survey, &item);
        }
        if let Some(item) = table.get_if_there(key(MIGRATION)).await? {
            note_version(survey, &item);
        }
        Ok(())
    }
}

fn note_leader(survey: &mut KclProbe, item: &AttributeMap) {
    // A released lock does not count.
    if !ItemFields(item).has("isReleased")
        && let Ok(leader) = read_leader(item)
    {
        survey.leader = Some(leader);
    }
}

fn read_leader(item: &AttributeMap) -> Result<Kcl3Leader, MalformedItem> {
    let fields = ItemFields(item);
    let lock_ms = fields.text("leaseDuration")?.and_then(|ms| ms.parse().ok());
    Ok(Kcl3Leader {
        owner: fields.text("ownerName")?.unwrap_or("?").to_owned(),
        version: fields.need_text("recordVersionNumber")?.to_owned(),
        lock_ms: lock_ms.unwrap_or(LEADER_LOCK_MS),
    })
}

fn note_version(survey: &mut KclProbe, item: &AttributeMap) {
    if let Ok(Some(version)) = ItemFields(item).text("cv") {
        survey.client_version = Some(version.to_owned());
    }
}

/// Returns an empty key: the probe does not use the stream of a row.
fn no_key() -> anabranch_model::lease::LeaseKey {
    anabranch_model::lease::LeaseKey::new("", "")
}
