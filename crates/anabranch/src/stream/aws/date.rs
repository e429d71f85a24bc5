//! The service's clock, read from the `Date` header of a reply.

use aws_sdk_kinesis::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_kinesis::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_kinesis::error::BoxError;
use aws_sdk_kinesis::primitives::{DateTime, DateTimeFormat};
use std::sync::{Arc, OnceLock};

/// Interceptor that stores the `Date` of the one reply that it sees.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyDate(Arc<OnceLock<u64>>);

impl ReplyDate {
    /// Returns the date in milliseconds since 1970, if the reply had one.
    pub(super) fn ms(&self) -> Option<u64> {
        self.0.get().copied()
    }
}

impl Intercept for ReplyDate {
    fn name(&self) -> &'static str {
        "ReplyDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let text = context.response().headers().get("date");
        let date = text.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        if let Some(ms) = date.and_then(|date| u64::try_from(date.to_millis().ok()?).ok()) {
            // There is one reply and one date; a second one is ignored.
            let _ = self.0.set(ms);
        }
        Ok(())
    }
}
