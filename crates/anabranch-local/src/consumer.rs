//! A registered fan-out consumer.

use crate::lifecycle::Lifecycle;
use std::collections::BTreeMap;

/// A registered fan-out consumer.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    /// Unique within the stream.
    pub(crate) name: String,
    pub(crate) arn: String,
    /// Time of registration, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    pub(crate) phase: Lifecycle,
    pub(crate) tags: BTreeMap<String, String>,
}

impl Consumer {
    pub(crate) fn new(
        name: &str,
        arn: &str,
        created_ms: u64,
        phase: Lifecycle,
        tags: &BTreeMap<String, String>,
    ) -> Self {
        Self { name: name.to_owned(), arn: arn.to_owned(), created_ms, phase, tags: tags.clone() }
    }
}
