//! Calls to one table, and the interpretation of their replies.

use super::expression::{Expression, WriteAction, WriteRequest};
use super::failure::{DynamoFailure, TableCall, store_name};
use super::item::AttributeMap;
use super::meter::UsageMeter;
use super::preparation::TablePreparation;
use crate::clock::{Clock, Rng};
use crate::lease::StoreError;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    ConsumedCapacity, ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure,
};

/// Maximum number of attempts of a write that conflicts with others.
const CONFLICT_TRIES: u32 = 10;
/// Bound of the random pause after the first conflict, in milliseconds. It doubles with each
/// conflict.
const CONFLICT_PAUSE_MS: u64 = 20;
const CONFLICT_PAUSE_MAX_MS: u64 = 500;

/// A table and its clients. Clones share everything.
#[derive(Clone, Debug)]
pub(in crate::lease) struct DynamoTable {
    pub(in crate::lease) name: String,
    /// Client for calls that may be repeated: the SDK retries them.
    pub(in crate::lease) reads: Client,
    /// Client for calls that must not be repeated. It makes one attempt, because a second one can't
    /// tell its own first one from another worker's write.
    pub(in crate::lease) writes: Client,
    pub(in crate::lease) clock: Clock,
    /// Randomizes pauses.
    pub(in crate::lease) chance: Rng,
    pub(in crate::lease) meter: UsageMeter,
    pub(in crate::lease) preparation: TablePreparation,
    /// True if a region is configured. The error message differs if there is none.
    pub(in crate::lease) has_region: bool,
}

/// The result of one attempt of a write.
#[derive(Debug)]
pub(in crate::lease) enum WriteAttempt {
    /// The write was applied.
    Applied(ItemAfter),
    /// The condition was false. Carries the item, if the service returned it.
    Refused(Option<AttributeMap>),
    /// The reply was lost.
    Lost,
}

/// The item after a write.
#[derive(Debug)]
pub(in crate::lease) enum ItemAfter {
    /// The item as the service returned it, or as it was put.
    Item(AttributeMap),
    /// The item was deleted.
    Absent,
    /// The service does not return the item.
    Unseen,
}

/// The range of a query or a scan.
#[derive(Clone, Debug, Default)]
pub(in crate::lease) struct KeyRange {
    /// The condition on the key; a scan has none.
    pub(in crate::lease) key: Option<String>,
    /// The condition on other attributes.
    pub(in crate::lease) filter: Option<String>,
    /// Names and values behind the placeholders of both.
    pub(in crate::lease) expression: Expression,
    /// True if items may be slightly stale, which costs half as much.
    pub(in crate::lease) may_be_old: bool,
}

impl DynamoTable {
    pub(in crate::lease) fn call(&self, action: &'static str) -> TableCall<'_> {
        TableCall { table: &self.name, action, has_region: self.has_region }
    }

    pub(in crate::lease) fn store(&self) -> String {
        store_name(&self.name)
    }

    /// Reads one item consistently.
    pub(in crate::lease) async fn get(
        &self,
        key: AttributeMap,
    ) -> Result<Option<AttributeMap>, StoreError> {
        let get = self.reads.get_item().table_name(&self.name).set_key(Some(key));
        let get = get.consistent_read(true).return_consumed_capacity(ReturnConsumedCapacity::Total);
        let reply = get.send().await.map_err(|e| self.call("GetItem").read_error(&e))?;
        self.meter.read(reply.consumed_capacity.as_ref());
        Ok(reply.item)
    }

    /// Reads one item of a table that may not exist.
    pub(in crate::lease) async fn get_if_there(
        &self,
        key: AttributeMap,
    ) -> Result<Option<AttributeMap>, StoreError> {
        match self.describe().await? {
            Some(_) => self.get(key).await,
            None => Ok(None),
        }
    }

    /// Returns the items of a partition, ordered by sort key.
    pub(in crate::lease) async fn query(
        &self,
        range: KeyRange,
    ) -> Result<Vec<AttributeMap>, StoreError> {
        let query = self.reads.query().table_name(&self.name).consistent_read(true);
        let query = query.set_key_condition_expression(range.key);
        let query = query.set_filter_expression(range.filter);
        let query = query.set_expression_attribute_names(range.expression.names());
        let query = query.set_expression_attribute_values(range.expression.values());
        let query = query.return_consumed_capacity(ReturnConsumedCapacity::Total);
        let (mut pages, mut items) = (query.into_paginator().send(), Vec::new());
        while let Some(page) = pages.next().await {
            let page = page.map_err(|e| self.call("Query").read_error(&e))?;
            self.meter.read(page.consumed_capacity.as_ref());
            items.extend(page.items.unwrap_or_default());
        }
        Ok(items)
    }

    /// Returns the items of the whole table, in no order.
    pub(in crate::lease) async fn scan(
        &self,
        range: KeyRange,
    ) -> Result<Vec<AttributeMap>, StoreError> {
        Ok(self.scan_at_cost(range).await?.0)
    }

    /// Does the same, and returns the read units consumed. 0 if the service does not count them.
    pub(in crate::lease) async fn scan_at_cost(
        &self,
        range: KeyRange,
    ) -> Result<(Vec<AttributeMap>, f64), StoreError> {
        let scan = self.reads.scan().table_name(&self.name).consistent_read(!range.may_be_old);
        let scan = scan.set_filter_expression(range.filter);
        let scan = scan.set_expression_attribute_names(range.expression.names());
        let scan = scan.set_expression_attribute_values(range.expression.values());
        let scan = scan.return_consumed_capacity(ReturnConsumedCapacity::Total);
        let (mut pages, mut items) = (scan.into_paginator().send(), Vec::new());
        let mut units = 0.0;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|e| self.call("Scan").read_error(&e))?;
            self.meter.read(page.consumed_capacity.as_ref());
            let capacity = page.consumed_capacity.as_ref();
            units += capacity.and_then(ConsumedCapacity::capacity_units).unwrap_or_default();
            items.extend(page.items.unwrap_or_default());
        }
        Ok((items, units))
    }

    /// Makes one write, or both in one transaction if there is a `beside`. After a conflict with
    /// another write in progress it pauses and tries again.
    pub(in crate::lease) async fn write(
        &self,
        request: &WriteRequest,
        beside: Option<&WriteRequest>,
    ) -> Result<WriteAttempt, StoreError> {
        let mut pause_ms = CONFLICT_PAUSE_MS;
        let mut conflict = String::new();
        for attempt in 0..CONFLICT_TRIES {
            if attempt > 0 {
                self.clock.sleep(1 + self.chance.below(pause_ms)).await;
                pause_ms = (pause_ms * 2).min(CONFLICT_PAUSE_MAX_MS);
            }
            self.meter.write();
            let sent = match (beside, &request.action) {
                (Some(beside), _) => self.transact(request, beside).await,
                (None, WriteAction::Put(item)) => self.put(item, &request.expression).await,
                (None, WriteAction::Update) => self.update(request).await,
                (None, WriteAction::Delete) => self.delete(request).await,
            };
            match sent {
                Ok(attempt) => return Ok(attempt),
                Err(DynamoFailure::Lost(_)) => return Ok(WriteAttempt::Lost),
                Err(DynamoFailure::Error(error)) => return Err(error),
                Err(DynamoFailure::Conflict(detail)) => {
                    self.meter.conflict();
                    conflict = detail;
                }
            }
        }
        Err(StoreError::Busy { store: self.store(), detail: conflict })
    }

    async fn update(&self, request: &WriteRequest) -> Result<WriteAttempt, DynamoFailure> {
        let expression = &request.expression;
        let update = self.writes.update_item().table_name(&self.name);
        let update = update.set_key(Some(request.key.clone()));
        let update = update.set_update_expression(expression.update_text());
        let update = update.set_condition_expression(expression.condition_text());
        let update = update.set_expression_attribute_names(expression.names());
        let update = update.set_expression_attribute_values(expression.values());
        let update = update.return_values(ReturnValue::AllNew);
        let update = update
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        match update.send().await {
            Ok(reply) => {
                self.meter.written(reply.consumed_capacity.as_slice());
                Ok(WriteAttempt::Applied(
                    reply.attributes.map_or(ItemAfter::Unseen, ItemAfter::Item),
                ))
            }
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(e)) => {
                    Ok(WriteAttempt::Refused(e.item.clone()))
                }
                _ => Err(self.call("UpdateItem").failure(&error)),
            },
        }
    }

    async fn put(
        &self,
        item: &AttributeMap,
        expression: &Expression,
    ) -> Result<WriteAttempt, DynamoFailure> {
        let put = self.writes.put_item().table_name(&self.name).set_item(Some(item.clone()));
        let put = put.set_condition_expression(expression.condition_text());
        let put = put.set_expression_attribute_names(expression.names());
        let put = put.set_expression_attribute_values(expression.values());
        let put = put
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        match put.send().await {
            Ok(reply) => {
                self.meter.written(reply.consumed_capacity.as_slice());
                Ok(WriteAttempt::Applied(ItemAfter::Item(item.clone())))
            }
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(e)) => {
                    Ok(WriteAttempt::Refused(e.item.clone()))
                }
                _ => Err(self.call("PutItem").failure(&error)),
            },
        }
    }

    async fn delete(&self, request: &WriteRequest) -> Result<WriteAttempt, DynamoFailure> {
        let expression = &request.expression;
        let delete = self.writes.delete_item().table_name(&self.name);
        let delete = delete.set_key(Some(request.key.clone()));
        let delete = delete.set_condition_expression(expression.condition_text());
        let delete = delete.set_expression_attribute_names(expression.names());
        let delete = delete.set_expression_attribute_values(expression.values());
        let delete = delete
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        match delete.send().await {
            Ok(reply) => {
                self.meter.written(reply.consumed_capacity.as_slice());
                Ok(WriteAttempt::Applied(ItemAfter::Absent))
            }
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(e)) => {
                    Ok(WriteAttempt::Refused(e.item.clone()))
                }
                _ => Err(self.call("DeleteItem").failure(&error)),
            },
        }
    }
}
