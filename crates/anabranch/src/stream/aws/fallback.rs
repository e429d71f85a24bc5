//! Sends a request, and sends it again in JSON if the endpoint does not understand CBOR.

use super::AwsKinesis;
use crate::stream::cbor::wire_format::WireFormat;
use aws_sdk_kinesis::error::SdkError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::future::Future;

/// Effect of sending a call twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEffect {
    /// None: the call only reads.
    Reads,
    /// The call may take effect twice.
    Writes,
}

impl AwsKinesis {
    /// Sends the request that `send` builds.
    ///
    /// If the reply shows that the endpoint does not speak CBOR, later requests are JSON. This one
    /// is then sent again at once, unless the first may have taken effect.
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
