//! References to a stream and its capacity mode in requests, except the hot operations.

use crate::change::StreamMode;
use crate::engine::StreamRef;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Reference to a stream: by name, by ARN, or by both.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct StreamTarget {
    /// The stream's name.
    #[serde(rename = "StreamName")]
    pub stream_name: Option<String>,
    /// The stream's ARN.
    #[serde(rename = "StreamARN")]
    pub stream_arn: Option<String>,
}

impl StreamTarget {
    /// Refers to a stream by name.
    pub fn named(name: &str) -> Self {
        Self { stream_name: Some(name.to_owned()), stream_arn: None }
    }

    /// Refers to a stream by ARN.
    pub fn by_arn(arn: &str) -> Self {
        Self { stream_name: None, stream_arn: Some(arn.to_owned()) }
    }

    /// Borrows the reference.
    pub fn as_ref(&self) -> StreamRef<'_> {
        StreamRef {
            name: self.stream_name.as_deref().map(Cow::Borrowed),
            arn: self.stream_arn.as_deref().map(Cow::Borrowed),
        }
    }
}

/// A capacity mode as requests and replies carry it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct StreamModeDetails {
    /// `PROVISIONED` or `ON_DEMAND`.
    pub stream_mode: String,
}

impl From<StreamMode> for StreamModeDetails {
    fn from(mode: StreamMode) -> Self {
        let name = match mode {
            StreamMode::Provisioned => "PROVISIONED",
            StreamMode::OnDemand => "ON_DEMAND",
        };
        Self { stream_mode: name.to_owned() }
    }
}

impl StreamModeDetails {
    /// Returns the mode of that name, or `None` for an unknown one.
    pub(crate) fn mode(&self) -> Option<StreamMode> {
        match self.stream_mode.as_str() {
            "PROVISIONED" => Some(StreamMode::Provisioned),
            "ON_DEMAND" => Some(StreamMode::OnDemand),
            _ => None,
        }
    }
}
