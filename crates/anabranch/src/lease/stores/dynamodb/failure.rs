//! Classification of failed calls, and their messages.

use crate::lease::StoreError;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::error::Error;

/// Classification of a failed call.
#[derive(Debug)]
pub(in crate::lease) enum DynamoFailure {
    /// The service did nothing, for this reason.
    Error(StoreError),
    /// The service did nothing, because another write was in progress. Try again.
    Conflict(String),
    /// It is unknown whether the service applied the call.
    Lost(String),
}

/// The target of a call, for messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::lease) struct TableCall<'a> {
    pub(in crate::lease) table: &'a str,
    /// The action as IAM policies name it, such as `GetItem`.
    pub(in crate::lease) action: &'static str,
    /// True if a region is configured.
    pub(in crate::lease) has_region: bool,
}

impl TableCall<'_> {
    /// Returns the store's name in messages.
    pub(in crate::lease) fn store(&self) -> String {
        store_name(self.table)
    }

    /// Classifies the failure of this call.
    pub(in crate::lease) fn failure<E>(&self, error: &SdkError<E, HttpResponse>) -> DynamoFailure
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match error {
            SdkError::ConstructionFailure(_) => {
                DynamoFailure::Error(self.unusable(error_chain(error)))
            }
            SdkError::ServiceError(context) => {
                // The service may have applied the call before it failed.
                if context.raw().status().as_u16() >= 500 {
                    return DynamoFailure::Lost(error_chain(error));
                }
                let code = context.err().code().unwrap_or_default();
                self.of_code(code, context.err().message().unwrap_or_default())
            }
            _ => DynamoFailure::Lost(error_chain(error)),
        }
    }

    /// Returns the error of a read, which can't have changed anything.
    pub(in crate::lease) fn read_error<E>(&self, error: &SdkError<E, HttpResponse>) -> StoreError
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match self.failure(error) {
            DynamoFailure::Error(error) => error,
            DynamoFailure::Conflict(detail) => StoreError::Busy { store: self.store(), detail },
            DynamoFailure::Lost(detail) => self.unreachable(&detail),
        }
    }

    /// Classifies an error code of the service.
    fn of_code(&self, code: &str, message: &str) -> DynamoFailure {
        let store = self.store();
        let said = if message.is_empty() { code.to_owned() } else { format!("{code}: {message}") };
        match code {
            "TransactionConflictException" | "TransactionInProgressException" => {
                DynamoFailure::Conflict(said)
            }
            "ThrottlingException"
            | "ProvisionedThroughputExceededException"
            | "RequestLimitExceeded"
            | "LimitExceededException" => {
                DynamoFailure::Error(StoreError::Throttled { store, detail: said })
            }
            "AccessDeniedException" => {
                let (action, table) = (self.action, self.table);
                let detail = format!("dynamodb:{action} on table `{table}` ({message})");
                DynamoFailure::Error(StoreError::Denied { store, detail })
            }
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "MissingAuthenticationToken"
            | "ExpiredTokenException" => {
                let detail = format!("it does not accept these credentials ({said})");
                DynamoFailure::Error(StoreError::Denied { store, detail })
            }
            "ResourceNotFoundException" => DynamoFailure::Error(StoreError::Missing {
                store,
                detail: format!(
                    "table `{}` does not exist (dynamodb:{}: {said}); if it was deleted, restore \
                     it with its checkpoints, or start again: the table is recreated, and the \
                     stream is read from the start position",
                    self.table, self.action
                ),
            }),
            "ValidationException" if !is_table_name(self.table) => {
                DynamoFailure::Error(self.unusable(format!(
                    "`{}` is not a valid table name: use 3 to 255 characters, of letters, digits, \
                     `_`, `-` and `.`",
                    self.table
                )))
            }
            "ValidationException" => DynamoFailure::Error(StoreError::ForeignSchema {
                store,
                detail: format!("dynamodb:{} was rejected ({said})", self.action),
            }),
            _ => DynamoFailure::Error(self.unusable(format!("dynamodb:{}: {said}", self.action))),
        }
    }

    fn unusable(&self, detail: String) -> StoreError {
        StoreError::Unusable { store: self.store(), detail }
    }

    /// Returns the error of a call without an answer. A client that could not send anything has a
    /// better reason than the network.
    fn unreachable(&self, detail: &str) -> StoreError {
        let store = self.store();
        if !self.has_region {
            let detail = "no AWS region is set: set AWS_REGION or `SdkConfig::region`";
            StoreError::Unusable { store, detail: detail.to_owned() }
        } else if detail.contains("credentials") || detail.contains("identity") {
            let detail = format!(
                "no AWS credentials were found ({detail}): set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, a profile or a role"
            );
            StoreError::Unusable { store, detail }
        } else {
            let detail = format!("dynamodb:{}: {detail}", self.action);
            StoreError::Unreachable { store, detail, source: None }
        }
    }
}

/// Returns true if the text is a valid table name.
fn is_table_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (3..=255).contains(&text.len()) && text.bytes().all(fits)
}

/// Returns the store's name in messages.
pub(in crate::lease) fn store_name(table: &str) -> String {
    format!("dynamodb:{table}")
}

/// Formats the error and its sources in one line.
fn error_chain<E: Error + 'static>(error: &SdkError<E, HttpResponse>) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        text.push_str(": ");
        text.push_str(&source.to_string());
        below = source.source();
    }
    text
}
