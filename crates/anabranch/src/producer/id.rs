//! The id of a producer: by it events and metrics tell producers of one stream apart.

use std::fmt;
use std::sync::Arc;

/// The most characters that an id may have.
pub(super) const ID_MAX_CHARS: usize = 128;

/// Which producer it is. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(Arc<str>);

impl ProducerId {
    /// The id of a producer that was given none.
    pub(super) fn drawn(number: u64) -> Self {
        format!("{number:016x}").into()
    }

    /// The id as it was given, or drawn.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ProducerId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for ProducerId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
