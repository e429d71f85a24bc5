//! Tags of streams and consumers: what may be one.

use crate::error::ApiError;
use anabranch_model::limits;
use std::collections::BTreeMap;

/// Refuses tags that the service would refuse.
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

/// Refuses the key of a tag that the service would refuse.
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

/// Refuses more tags than a resource may have.
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
