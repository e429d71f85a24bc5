//! Tags of streams and consumers, and the service's rules for them.

use crate::arn::{self, ParsedArn};
use crate::engine::Engine;
use crate::error::ApiError;
use crate::stream::Topology;
use anabranch_model::limits;
use serde::Serialize;
use std::collections::BTreeMap;

/// A tag: key and value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Tag {
    pub key: String,
    pub value: String,
}

impl From<(&String, &String)> for Tag {
    fn from((key, value): (&String, &String)) -> Self {
        Self { key: key.clone(), value: value.clone() }
    }
}

/// A stream or consumer as the owner of tags.
pub(crate) struct Resource<'a> {
    pub(crate) stream: &'a str,
    /// The consumer's ARN, if the owner is a consumer.
    consumer_arn: Option<&'a str>,
}

impl Resource<'_> {
    /// Returns the resource's tags. Returns an error if the consumer does not exist.
    pub(crate) fn tags<'t>(
        &self,
        topology: &'t Topology,
        now_ms: u64,
    ) -> Result<&'t BTreeMap<String, String>, ApiError> {
        let Some(arn) = self.consumer_arn else { return Ok(&topology.tags) };
        let found = topology.present_consumers(now_ms).find(|(consumer, _)| consumer.arn == arn);
        let (consumer, _) = found.ok_or_else(|| Engine::consumer_not_found(arn))?;
        Ok(&consumer.tags)
    }

    /// Returns the consumer's name, if the owner is a consumer.
    pub(crate) fn consumer_name(&self, topology: &Topology) -> Option<String> {
        let arn = self.consumer_arn?;
        let found = topology.consumers.values().find(|consumer| consumer.arn == arn)?;
        Some(found.name.clone())
    }
}

impl Engine {
    /// Returns the stream or consumer that an ARN names.
    pub(crate) fn resource<'a>(&self, text: &'a str) -> Result<Resource<'a>, ApiError> {
        let ParsedArn { region, account, stream, consumer } =
            arn::parse(text).ok_or_else(|| crate::constraint::bad_arn(text))?;
        if account != self.home.account || region != self.home.region {
            return Err(ApiError::not_found(format!("Resource {text} not found.")));
        }
        Ok(Resource { stream, consumer_arn: consumer.map(|_| text) })
    }
}

/// Returns an error for tags that the service would refuse.
pub(crate) fn check(tags: &BTreeMap<String, String>) -> Result<(), ApiError> {
    for (key, value) in tags {
        check_key(key)?;
        if value.chars().count() > 256 {
            return Err(ApiError::validation(format!(
                "1 validation error detected: Value '{{{key}={value}}}' at 'tags' failed to \
                 satisfy constraint: Map value must satisfy constraint: [Member must have length \
                 less than or equal to 256, Member must have length greater than or equal to 0]"
            )));
        }
        check_characters(value)?;
    }
    Ok(())
}

/// Returns an error for a tag key that the service would refuse.
pub(crate) fn check_key(key: &str) -> Result<(), ApiError> {
    if !(1..=128).contains(&key.chars().count()) {
        return Err(ApiError::validation(format!(
            "1 validation error detected: Value '{key}' at 'tags' failed to satisfy constraint: \
             Map keys must satisfy constraint: [Member must have length less than or equal to \
             128, Member must have length greater than or equal to 1]"
        )));
    }
    check_characters(key)
}

fn check_characters(text: &str) -> Result<(), ApiError> {
    let valid = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.:/=+-@%\\".contains(c);
    if text.chars().all(valid) {
        return Ok(());
    }
    Err(ApiError::invalid(
        "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white \
         space, _ . / = + - % @.",
    ))
}

/// Returns an error if the resource would have more tags than allowed.
pub(crate) fn check_count(
    stream: &str,
    account: &str,
    have: &BTreeMap<String, String>,
    more: &BTreeMap<String, String>,
) -> Result<(), ApiError> {
    let new = more.keys().filter(|key| !have.contains_key(*key)).count();
    if have.len() + new <= limits::STREAM_MAX_TAGS {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "Failed to add tags to stream {stream} under account {account} because a given stream \
         cannot have more than {} tags associated with it.",
        limits::STREAM_MAX_TAGS
    )))
}
