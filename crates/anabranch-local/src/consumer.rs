//! A registered fan-out consumer.

use crate::lifecycle::Lifecycle;
use std::collections::BTreeMap;

/// A registered fan-out consumer.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    /// The name, unique in the stream.
    pub(crate) name: String,
    /// The ARN.
    pub(crate) arn: String,
    /// When it was registered.
    pub(crate) created_ms: u64,
    /// Where it is in its life.
    pub(crate) phase: Lifecycle,
    /// Its tags.
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
