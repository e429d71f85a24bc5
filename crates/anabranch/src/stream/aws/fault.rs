//! Maps errors of the SDK to [`Fault`]s.

use super::super::api::StreamError;
use crate::http_client::CallError;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::retry::Fault;
use aws_sdk_kinesis::error::{ProvideErrorMetadata, SdkError};
use std::error::Error;
use std::fmt::Write as _;

/// Identifies a call in error messages.
#[derive(Clone, Copy)]
pub(super) struct AwsCall<'a> {
    /// Operation name.
    pub(super) operation: &'static str,
    /// Stream, by name or ARN.
    pub(super) stream: &'a str,
    /// Shard, if the call is about one.
    pub(super) shard: Option<&'a ShardId>,
}

impl<'a> AwsCall<'a> {
    pub(super) fn on(operation: &'static str, stream: &'a StreamName) -> Self {
        Self { operation, stream: stream.as_str(), shard: None }
    }

    /// Converts an SDK error.
    pub(super) fn failed<E, R>(self, error: SdkError<E, R>) -> StreamError
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
        R: HttpStatus + std::fmt::Debug + Send + Sync + 'static,
    {
        let code = error.as_service_error().and_then(|service| service.code().map(str::to_owned));
        self.failed_by(code.as_deref().unwrap_or_default(), error)
    }

    /// Converts an SDK error that has the service error name `name`, which may be empty.
    pub(super) fn failed_by<E, R>(self, name: &str, error: SdkError<E, R>) -> StreamError
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
        R: HttpStatus + std::fmt::Debug + Send + Sync + 'static,
    {
        let fault = classify(name, &error);
        let detail = match error.as_service_error() {
            Some(service) => {
                let name = if name.is_empty() { "unnamed error" } else { name };
                format!("{name}: {}", service.message().unwrap_or("no message"))
            }
            None => chain(&error),
        };
        self.error(fault, detail, Some(Box::new(error)))
    }

    /// Returns the error for a value in the reply that cannot be parsed.
    pub(super) fn unreadable(self, what: &str, value: &str) -> StreamError {
        let shown: String = value.chars().take(80).collect();
        self.error(Fault::Internal, format!("cannot parse the reply's {what}: {shown:?}"), None)
    }

    /// Returns the error for a subscription without an event for [`super::SILENCE_TIMEOUT`].
    pub(super) fn timed_out(self) -> StreamError {
        let seconds = super::SILENCE_TIMEOUT.as_secs();
        self.error(Fault::ReplyLost, format!("no event for {seconds} s"), None)
    }

    fn error(
        self,
        fault: Fault,
        detail: String,
        source: Option<Box<dyn Error + Send + Sync>>,
    ) -> StreamError {
        let target = match self.shard {
            None => self.stream.to_owned(),
            Some(shard) => format!("{}/{shard}", self.stream),
        };
        StreamError { fault, operation: self.operation, target, detail, source }
    }
}

/// A raw reply, which may have an HTTP status.
pub(super) trait HttpStatus {
    /// Returns the HTTP status, if there is one.
    fn status(&self) -> Option<u16>;
}

impl HttpStatus for aws_smithy_runtime_api::client::orchestrator::HttpResponse {
    fn status(&self) -> Option<u16> {
        Some(self.status().as_u16())
    }
}

impl HttpStatus for aws_smithy_types::event_stream::RawMessage {
    fn status(&self) -> Option<u16> {
        None
    }
}

fn classify<
    E: ProvideErrorMetadata + Error + 'static,
    R: HttpStatus + std::fmt::Debug + 'static,
>(
    name: &str,
    error: &SdkError<E, R>,
) -> Fault {
    match error {
        SdkError::ServiceError(service) => {
            let message = service.err().message().unwrap_or_default();
            Fault::of_words(name, service.raw().status(), message)
        }
        // A successful reply that cannot be parsed, or a failed one without an error name.
        SdkError::ResponseError(reply) => match reply.raw().status() {
            None | Some(200..=299) => Fault::ReplyLost,
            status => Fault::of("", status),
        },
        // The request could not be built, or its endpoint or credentials were not found.
        SdkError::ConstructionFailure(_) => match classify_unsent(error) {
            Fault::CredentialsExpired => Fault::CredentialsExpired,
            _ => Fault::NotSent,
        },
        SdkError::TimeoutError(_) | SdkError::DispatchFailure(_) => classify_unsent(error),
        _ => Fault::Unknown,
    }
}

/// Classifies an error of a request that may not have left. Only proof that it did not leave counts
/// as [`Fault::NotSent`]. The SDK keeps that proof in the sources of its own errors.
fn classify_unsent(error: &(dyn Error + 'static)) -> Fault {
    let mut below = Some(error);
    while let Some(error) = below {
        if let Some(call) = error.downcast_ref::<CallError>() {
            return if call.is_not_applied() { Fault::NotSent } else { Fault::ReplyLost };
        }
        // Errors of a user-supplied HTTP client.
        let refused = error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
        let text = error.to_string();
        if refused
            || text.starts_with("HTTP connect timeout")
            || text.starts_with("client error (Connect)")
            || text.starts_with("dns error")
        {
            return Fault::NotSent;
        }
        if text.contains("credentials") {
            // A credentials provider that cannot be reached now may be reachable later.
            return Fault::CredentialsExpired;
        }
        below = error.source();
    }
    Fault::ReplyLost
}

/// Formats an error and all its sources in one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        let _ = write!(text, ": {error}");
        below = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
