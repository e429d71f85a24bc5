//! What a failed call means: for a read, for a write, and for whoever reads the message.

use crate::lease::StoreError;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::error::Error;

/// What a failed call means.
#[derive(Debug)]
pub(in crate::lease) enum DynamoFailure {
    /// The service did nothing, and this is why.
    Error(StoreError),
    /// The service did nothing, because another write was in progress. Try again.
    Conflict(String),
    /// Nobody knows whether the service did it.
    Lost(String),
}

/// Where a call went, for messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::lease) struct TableCall<'a> {
    /// The table.
    pub(in crate::lease) table: &'a str,
    /// The action as policies name it, such as `GetItem`.
    pub(in crate::lease) action: &'static str,
    /// Whether a region is set.
    pub(in crate::lease) has_region: bool,
}

impl TableCall<'_> {
    /// How messages name the store.
    pub(in crate::lease) fn store(&self) -> String {
        store_name(self.table)
    }

    /// What the failure of this call means.
    pub(in crate::lease) fn failure<E>(&self, error: &SdkError<E, HttpResponse>) -> DynamoFailure
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match error {
            SdkError::ConstructionFailure(_) => {
                DynamoFailure::Error(self.unusable(error_chain(error)))
            }
            SdkError::ServiceError(context) => {
                // The service may have done it before it fell over.
                if context.raw().status().as_u16() >= 500 {
                    return DynamoFailure::Lost(error_chain(error));
                }
                let code = context.err().code().unwrap_or_default();
                self.of_code(code, context.err().message().unwrap_or_default())
            }
            _ => DynamoFailure::Lost(error_chain(error)),
        }
    }

    /// The error of a read, where nothing can have been done.
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

    /// What the service says with an error code.
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
                    "there is no table `{}` (dynamodb:{}: {said}); if it was deleted, restore it \
                     with its checkpoints, or start again: it is made anew, and the stream is read \
                     from the start position",
                    self.table, self.action
                ),
            }),
            "ValidationException" if !is_table_name(self.table) => {
                DynamoFailure::Error(self.unusable(format!(
                    "`{}` can't be the name of a table: one has 3 to 255 characters, of letters, \
                     digits, `_`, `-` and `.`",
                    self.table
                )))
            }
            "ValidationException" => DynamoFailure::Error(StoreError::ForeignSchema {
                store,
                detail: format!("dynamodb:{} was not accepted ({said})", self.action),
            }),
            _ => DynamoFailure::Error(self.unusable(format!("dynamodb:{}: {said}", self.action))),
        }
    }

    fn unusable(&self, detail: String) -> StoreError {
        StoreError::Unusable { store: self.store(), detail }
    }

    /// The error of a call that had no answer. A client that was never able to ask has a better
    /// reason than the network.
    fn unreachable(&self, detail: &str) -> StoreError {
        let store = self.store();
        if !self.has_region {
            let detail = "no region is set, so there is no endpoint to ask; set AWS_REGION or \
                          `SdkConfig::region`";
            StoreError::Unusable { store, detail: detail.to_owned() }
        } else if detail.contains("credentials") || detail.contains("identity") {
            let detail = format!(
                "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a \
                 profile or a role ({detail})"
            );
            StoreError::Unusable { store, detail }
        } else {
            let detail = format!("dynamodb:{}: {detail}", self.action);
            StoreError::Unreachable { store, detail, source: None }
        }
    }
}

/// Whether a table may be called so.
fn is_table_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (3..=255).contains(&text.len()) && text.bytes().all(fits)
}

/// How messages name the store.
pub(in crate::lease) fn store_name(table: &str) -> String {
    format!("dynamodb:{table}")
}

/// The error and what lies below it, in one line.
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
