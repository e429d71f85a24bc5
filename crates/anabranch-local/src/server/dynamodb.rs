//! DynamoDB on the same port, by embedding dynoxide, so that a KCL application needs only one
//! process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The DynamoDB tables of a local stream.
pub(crate) struct Tables {
    /// Clones share the database.
    database: Database,
    /// True if the tables are in a file. A call may then block on the file, so it runs outside the
    /// server's async threads.
    on_disk: bool,
}

/// An answer: its HTTP status and its JSON.
pub(crate) type DynamoAnswer = (u16, String);

impl Tables {
    /// Creates tables in memory, which live as long as the process.
    pub(crate) fn in_memory() -> Result<Self, String> {
        let database = Database::memory().map_err(|error| error.to_string())?;
        Ok(Self { database, on_disk: false })
    }

    /// Opens tables in a file, and creates the file if it is missing.
    pub(crate) fn on_disk(file: &Path) -> Result<Self, String> {
        let path = file.to_str().ok_or("the path is not UTF-8")?;
        let database = Database::new(path).map_err(|error| error.to_string())?;
        Ok(Self { database, on_disk: true })
    }

    /// Runs one operation.
    pub(crate) async fn call(&self, operation: &str, body: Bytes) -> DynamoAnswer {
        if !self.on_disk {
            let call = AssertUnwindSafe(|| run(&self.database, operation, &body));
            return catch_unwind(call).unwrap_or_else(|_| failed("Internal server error"));
        }
        let (database, operation) = (self.database.clone(), operation.to_owned());
        let call = tokio::task::spawn_blocking(move || run(&database, &operation, &body));
        call.await.unwrap_or_else(|_| failed("Internal server error"))
    }
}

fn failed(message: &str) -> DynamoAnswer {
    let error = DynoxideError::InternalServerError(message.to_owned());
    (error.status_code(), error.to_json())
}

fn run(database: &Database, operation: &str, body: &[u8]) -> DynamoAnswer {
    match dispatch(database, operation, body) {
        Some(Ok(json)) => (200, json),
        Some(Err(error)) => (error.status_code(), error.to_json()),
        None => {
            let error = r#"{"__type":"com.amazon.coral.service#UnknownOperationException"}"#;
            (400, error.to_owned())
        }
    }
}

/// Returns `None` for an operation that dynoxide does not support.
fn dispatch(
    database: &Database,
    operation: &str,
    body: &[u8],
) -> Option<Result<String, DynoxideError>> {
    macro_rules! call {
        ($method:ident) => {
            serve(body, |request| database.$method(request))
        };
    }
    Some(match operation {
        "CreateTable" => call!(create_table),
        "DescribeTable" => call!(describe_table),
        "UpdateTable" => call!(update_table),
        "DeleteTable" => call!(delete_table),
        "ListTables" => call!(list_tables),
        "PutItem" => call!(put_item),
        "GetItem" => call!(get_item),
        "UpdateItem" => call!(update_item),
        "DeleteItem" => call!(delete_item),
        "Query" => call!(query),
        "Scan" => call!(scan),
        "BatchGetItem" => call!(batch_get_item),
        "BatchWriteItem" => call!(batch_write_item),
        "TransactGetItems" => call!(transact_get_items),
        "TransactWriteItems" => call!(transact_write_items),
        "ExecuteStatement" => call!(execute_statement),
        "ExecuteTransaction" => call!(execute_transaction),
        "BatchExecuteStatement" => call!(batch_execute_statement),
        "UpdateTimeToLive" => call!(update_time_to_live),
        "DescribeTimeToLive" => call!(describe_time_to_live),
        "TagResource" => call!(tag_resource),
        "UntagResource" => call!(untag_resource),
        "ListTagsOfResource" => call!(list_tags_of_resource),
        "SearchVectors" => call!(search_vectors),
        "ListStreams" => call!(list_streams),
        "DescribeStream" => call!(describe_stream),
        "GetShardIterator" => call!(get_shard_iterator),
        "GetRecords" => call!(get_records),
        _ => return None,
    })
}

fn serve<Q: DeserializeOwned, R: Serialize>(
    body: &[u8],
    operation: impl FnOnce(Q) -> Result<R, DynoxideError>,
) -> Result<String, DynoxideError> {
    let body = if body.is_empty() { b"{}" } else { body };
    let request = serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))?;
    serde_json::to_string(&operation(request)?)
        .map_err(|error| DynoxideError::InternalServerError(error.to_string()))
}

/// Returns DynamoDB's error for an unreadable request: a validation error for a missing field, a
/// serialization error for a wrong type. dynoxide's own parsers mark the kind by a prefix of the
/// message.
fn unreadable(message: &str) -> DynoxideError {
    let place = message.rfind(" at line ").unwrap_or(message.len());
    let message = &message[..place];
    for mark in ["VALIDATION_REQUEST:", "VALIDATION:"] {
        if let Some(message) = message.strip_prefix(mark) {
            return DynoxideError::ValidationException(message.to_owned());
        }
    }
    if let Some(message) = message.strip_prefix("SERIALIZATION:") {
        return DynoxideError::SerializationException(message.to_owned());
    }
    let missing = ["missing field", "unknown variant", "invalid type: null", "AttributeValue"];
    if missing.iter().any(|words| message.contains(words)) {
        DynoxideError::ValidationException(message.to_owned())
    } else {
        DynoxideError::SerializationException(message.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_requests_are_answered_with_dynamodbs_types_and_never_with_500() {
        let database = Database::memory().expect("an empty database");
        for (operation, body, status, kind) in [
            ("ListTables", "", 200, ""),
            ("ListTables", "{}", 200, ""),
            ("PutItem", "{}", 400, "ValidationException"),
            ("PutItem", "{", 400, "SerializationException"),
            ("CreateTable", r#"{"TableName":7}"#, 400, "SerializationException"),
            ("Scan", r#"{"TableName":"absent"}"#, 400, "ResourceNotFoundException"),
            ("MakeCoffee", "{}", 400, "UnknownOperationException"),
        ] {
            let (got, json) = run(&database, operation, body.as_bytes());
            assert_eq!(got, status, "{operation} {body}: {json}");
            assert!(json.contains(kind), "{operation} {body}: {json}");
        }
    }
}
