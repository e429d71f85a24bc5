//! Two writes in one transaction: a row, and the version that makes other workers list the leases.

use super::expression::{WriteAction, WriteRequest};
use super::failure::DynamoFailure;
use super::table::{DynamoTable, ItemAfter, WriteAttempt};
use crate::lease::StoreError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::error::TransactionCanceledException;
use aws_sdk_dynamodb::types::{
    Delete, Put, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
    Update,
};

impl DynamoTable {
    /// Makes both writes or none. Refusals are reported for the first one's condition.
    pub(in crate::lease) async fn transact(
        &self,
        request: &WriteRequest,
        beside: &WriteRequest,
    ) -> Result<WriteAttempt, DynamoFailure> {
        let items = [self.item_of(request), self.item_of(beside)];
        let transact = self.writes.transact_write_items().set_transact_items(Some(items.into()));
        let transact = transact.return_consumed_capacity(ReturnConsumedCapacity::Total);
        match transact.send().await {
            Ok(reply) => {
                self.meter.written(reply.consumed_capacity());
                Ok(WriteAttempt::Applied(match &request.action {
                    WriteAction::Put(item) => ItemAfter::Item(item.clone()),
                    WriteAction::Update => ItemAfter::Unseen,
                    WriteAction::Delete => ItemAfter::Absent,
                }))
            }
            Err(error) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    self.cancelled(cancelled)
                }
                _ => Err(self.call("TransactWriteItems").failure(&error)),
            },
        }
    }

    /// Interprets a cancelled transaction. It has one reason per item, which is `None` for an item
    /// that would have passed.
    fn cancelled(
        &self,
        cancelled: &TransactionCanceledException,
    ) -> Result<WriteAttempt, DynamoFailure> {
        let reasons = cancelled.cancellation_reasons();
        let has = |code: &str| reasons.iter().any(|reason| reason.code() == Some(code));
        let said = reasons
            .iter()
            .map(|reason| {
                let (code, message) = (reason.code().unwrap_or("?"), reason.message());
                message.map_or_else(|| code.to_owned(), |message| format!("{code} ({message})"))
            })
            .collect::<Vec<_>>()
            .join(", ");
        let (store, detail) = (self.store(), format!("TransactionCanceledException: {said}"));
        // If another write is in progress, the condition is checked again after it.
        if has("TransactionConflict") {
            return Err(DynamoFailure::Conflict(detail));
        }
        if let Some(reason) = reasons.first()
            && reason.code() == Some("ConditionalCheckFailed")
        {
            return Ok(WriteAttempt::Refused(reason.item.clone()));
        }
        Err(DynamoFailure::Error(
            if has("ThrottlingError") || has("ProvisionedThroughputExceeded") {
                StoreError::Throttled { store, detail }
            } else {
                StoreError::Unusable { store, detail }
            },
        ))
    }

    fn item_of(&self, request: &WriteRequest) -> TransactWriteItem {
        let expression = &request.expression;
        let (condition, names) = (expression.condition_text(), expression.names());
        let (values, table) = (expression.values(), &self.name);
        let on_failure = ReturnValuesOnConditionCheckFailure::AllOld;
        let item = TransactWriteItem::builder();
        match &request.action {
            WriteAction::Put(whole) => {
                let put = Put::builder().table_name(table).set_item(Some(whole.clone()));
                let put = put.set_condition_expression(condition);
                let put = put.set_expression_attribute_names(names);
                let put = put.set_expression_attribute_values(values);
                let put = put.return_values_on_condition_check_failure(on_failure);
                item.put(put.build().expect("table and item are set"))
            }
            WriteAction::Update => {
                let update = Update::builder().table_name(table).set_key(Some(request.key.clone()));
                let update = update.set_update_expression(expression.update_text());
                let update = update.set_condition_expression(condition);
                let update = update.set_expression_attribute_names(names);
                let update = update.set_expression_attribute_values(values);
                let update = update.return_values_on_condition_check_failure(on_failure);
                item.update(update.build().expect("every update sets something"))
            }
            WriteAction::Delete => {
                let delete = Delete::builder().table_name(table).set_key(Some(request.key.clone()));
                let delete = delete.set_condition_expression(condition);
                let delete = delete.set_expression_attribute_names(names);
                let delete = delete.set_expression_attribute_values(values);
                let delete = delete.return_values_on_condition_check_failure(on_failure);
                item.delete(delete.build().expect("table and key are set"))
            }
        }
        .build()
    }
}
