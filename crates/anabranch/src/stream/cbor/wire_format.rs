//! Which of the two formats is spoken with an endpoint: CBOR, until the endpoint shows that it has
//! none.
//!
//! | what came back for a CBOR request | CBOR not yet seen to work | CBOR was seen to work |
//! |---|---|---|
//! | a CBOR reply, good or not | it works | – |
//! | an error in another format, or one that says that the request can't be read | JSON from now on | – |
//! | record data that are not a byte string | JSON from now on | JSON from now on |
//! | a good reply in another format | – | – |
//!
//! Kinesis itself speaks it. kinesis-mock, kinesalite and moto, and `LocalStack` with the first of
//! them inside, don't: they fail, or send record data as text.

use std::sync::atomic::{AtomicU8, Ordering};

/// How requests and replies are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WireFormat {
    /// CBOR, as the SDKs for Java speak it, with JSON as fallback: an endpoint that shows that it
    /// does not speak CBOR is spoken to in JSON from then on, and the log says so.
    #[default]
    Cbor,
    /// JSON, as the other SDKs speak it.
    Json,
}

impl WireFormat {
    /// What the environment asks for, by the variables of the SDKs for Java: JSON where
    /// `AWS_CBOR_DISABLE` is set to anything but `false` or `0`, or where `CBOR_ENABLED` is `false`.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).ok().map(|value| value.to_ascii_lowercase());
        Self::of(var("AWS_CBOR_DISABLE").as_deref(), var("CBOR_ENABLED").as_deref())
    }

    fn of(disable: Option<&str>, enabled: Option<&str>) -> Self {
        let disabled = disable.is_some_and(|value| !matches!(value, "" | "false" | "0"));
        if disabled || enabled == Some("false") { Self::Json } else { Self::Cbor }
    }
}

/// What is known of an endpoint.
#[derive(Debug)]
pub(in crate::stream) struct WireFormatState(AtomicU8);

/// CBOR is tried, and no reply has come yet.
const TRIED: u8 = 0;
/// CBOR works.
const WORKS: u8 = 1;
/// JSON is spoken.
const JSON: u8 = 2;

/// What came back for a CBOR request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CborReply<'a> {
    /// Whether its content type says CBOR.
    pub(super) is_cbor: bool,
    /// The name of the error, if it is one. Empty if it has none.
    pub(super) error: Option<&'a str>,
}

impl WireFormatState {
    pub(in crate::stream) fn new(format: WireFormat) -> Self {
        Self(AtomicU8::new(if format == WireFormat::Cbor { TRIED } else { JSON }))
    }

    /// What the next request is written in.
    pub(in crate::stream) fn format(&self) -> WireFormat {
        if self.0.load(Ordering::Relaxed) == JSON { WireFormat::Json } else { WireFormat::Cbor }
    }

    /// Learns from an answer to a CBOR request.
    pub(super) fn note_reply(&self, answer: CborReply<'_>) {
        if self.0.load(Ordering::Relaxed) != TRIED {
            return;
        }
        match answer {
            CborReply { error: Some("SerializationException"), .. } => {
                self.mark_unsupported("it says that a CBOR request can't be read");
            }
            CborReply { is_cbor: true, .. } => {
                // Someone else may have learnt more since.
                let order = Ordering::Relaxed;
                let _ = self.0.compare_exchange(TRIED, WORKS, order, order);
            }
            CborReply { error: Some(_), .. } => {
                self.mark_unsupported("it answers a CBOR request with an error that is not CBOR");
            }
            CborReply { error: None, .. } => {}
        }
    }

    /// The endpoint does not speak Kinesis' CBOR.
    pub(super) fn mark_unsupported(&self, why: &str) {
        if self.0.swap(JSON, Ordering::Relaxed) != JSON {
            tracing::warn!(
                "the endpoint does not speak Kinesis' CBOR: {why}; from now on it is spoken to in \
                 JSON. Set WireFormat::Json, or AWS_CBOR_DISABLE=true, to begin with JSON"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_spoken_once_an_endpoint_shows_that_it_has_no_cbor() {
        let good = |is_cbor| CborReply { is_cbor, error: None };
        let bad = |is_cbor, name| CborReply { is_cbor, error: Some(name) };
        let check = |answers: &[CborReply<'_>], format| {
            let spoken = WireFormatState::new(WireFormat::Cbor);
            for answer in answers {
                spoken.note_reply(*answer);
            }
            assert_eq!(spoken.format(), format, "{answers:?}");
        };
        check(&[], WireFormat::Cbor);
        check(&[good(true)], WireFormat::Cbor);
        check(&[good(false)], WireFormat::Cbor);
        check(&[bad(true, "ResourceNotFoundException")], WireFormat::Cbor);
        check(&[bad(true, "SerializationException")], WireFormat::Json);
        check(&[bad(false, "")], WireFormat::Json);
        check(&[good(false), bad(false, "UnknownOperationException")], WireFormat::Json);
        // A proxy in front of Kinesis may answer for itself now and then.
        check(&[good(true), bad(false, "")], WireFormat::Cbor);
        check(&[bad(true, "LimitExceededException"), bad(false, "")], WireFormat::Cbor);
    }

    #[test]
    fn data_that_are_no_bytes_end_cbor_at_any_time() {
        let spoken = WireFormatState::new(WireFormat::Cbor);
        spoken.note_reply(CborReply { is_cbor: true, error: None });
        spoken.mark_unsupported("its data are text");
        assert_eq!(spoken.format(), WireFormat::Json);
        spoken.note_reply(CborReply { is_cbor: true, error: None });
        assert_eq!(spoken.format(), WireFormat::Json);
    }

    #[test]
    fn the_variables_of_the_java_sdks_choose_json() {
        for (disable, enabled, format) in [
            (None, None, WireFormat::Cbor),
            (Some(""), None, WireFormat::Cbor),
            (Some("false"), Some("true"), WireFormat::Cbor),
            (Some("true"), None, WireFormat::Json),
            (Some("1"), None, WireFormat::Json),
            (None, Some("false"), WireFormat::Json),
        ] {
            assert_eq!(WireFormat::of(disable, enabled), format, "{disable:?} {enabled:?}");
        }
    }
}
