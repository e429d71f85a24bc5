//! Sending a request, and sending it again in JSON where CBOR was not understood.

use super::AwsKinesis;
use crate::stream::cbor::wire_format::WireFormat;
use aws_sdk_kinesis::error::SdkError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::future::Future;

/// What a repeated call may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEffect {
    /// Nothing that one call does not.
    Reads,
    /// Something twice, if the first one took effect.
    Writes,
}

impl AwsKinesis {
    /// Sends what `send` makes. Where the endpoint shows by its answer that it does not speak CBOR,
    /// what `send` makes next is JSON; it is sent at once, unless the first may have taken effect.
    pub(super) async fn send_with_fallback<T, E, F>(
        &self,
        effect: CallEffect,
        send: impl Fn() -> F,
    ) -> Result<T, SdkError<E, HttpResponse>>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let before = self.format();
        let reply = send().await;
        let Err(error) = &reply else { return reply };
        if before == WireFormat::Cbor && self.format() == WireFormat::Json {
            let refused = error.raw_response().is_some_and(|raw| raw.status().is_client_error());
            if refused || effect == CallEffect::Reads {
                return send().await;
            }
        }
        reply
    }
}
