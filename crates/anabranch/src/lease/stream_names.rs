//! The names of a stream, as the service knows them.

use crate::stream::api::{StreamApi, StreamError, StreamSummary};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::StreamNames;

/// Returns the names of a stream. `summary` is the service's answer for the `given` name.
///
/// A plain name belongs to the caller's account and region. So a given ARN has a plain name only if
/// the service answers that name with the same ARN.
pub async fn stream_names<A: StreamApi>(
    api: &A,
    given: &StreamName,
    summary: &StreamSummary,
) -> Result<StreamNames, StreamError> {
    let names = |other| StreamNames { given: given.clone(), other };
    if !given.is_arn() {
        let arn = StreamName::from(summary.arn.as_str());
        return Ok(names(arn.in_arn().is_some_and(|name| name == *given).then_some(arn)));
    }
    let Some(plain) = given.in_arn() else { return Ok(names(None)) };
    match api.describe(&plain).await {
        Ok(own) => Ok(names((own.arn == summary.arn).then_some(plain))),
        Err(error) if error.is_retryable() => Err(error),
        // Missing in this account, or not accessible to the caller.
        Err(_) => Ok(names(None)),
    }
}
