//! Wire format of an endpoint: CBOR, until the endpoint shows that it does not support it.
//!
//! | reply to a CBOR request | CBOR not yet known to work | CBOR known to work |
//! |---|---|---|
//! | a CBOR reply, successful or not | CBOR works | – |
//! | an error in another format, or one that says that the request can't be read | JSON from now on | – |
//! | record data that are not a byte string | JSON from now on | JSON from now on |
//! | a successful reply in another format | – | – |
//!
//! Kinesis supports CBOR. kinesis-mock, `LocalStack` (which embeds it), kinesalite and moto do not:
//! they fail, or send record data as text.

use std::sync::atomic::{AtomicU8, Ordering};

/// Encoding of requests and replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WireFormat {
    /// CBOR, as in the SDKs for Java, with JSON as fallback. Once an endpoint shows that it does
    /// not support CBOR, a warning is logged and all further requests are JSON.
    #[default]
    Cbor,
    /// JSON, as in the other SDKs.
    Json,
}

impl WireFormat {
    /// Returns the format that the environment asks for, by the variables of the SDKs for Java.
    /// This is JSON if `AWS_CBOR_DISABLE` is set to anything but an empty value, `false` or `0`, or
    /// if `CBOR_ENABLED` is `false`.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).ok().map(|value| value.to_ascii_lowercase());
        Self::of(var("AWS_CBOR_DISABLE").as_deref(), var("CBOR_ENABLED").as_deref())
    }

    fn of(disable: Option<&str>, enabled: Option<&str>) -> Self {
        let disabled = disable.is_some_and(|value| !matches!(value, "" | "false" | "0"));
        if disabled || enabled == Some("false") { Self::Json } else { Self::Cbor }
    }
}

/// State of the format detection for one endpoint.
#[derive(Debug)]
pub(in crate::stream) struct WireFormatState(AtomicU8);

/// CBOR is being tried; no reply has settled it yet.
const TRIED: u8 = 0;
/// CBOR works.
const WORKS: u8 = 1;
/// JSON is used.
const JSON: u8 = 2;

/// Reply to a CBOR request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CborReply<'a> {
    /// True if the content type of the reply is CBOR.
    pub(super) is_cbor: bool,
    /// Error name if the reply is an error. Empty if the error has no name.
    pub(super) error: Option<&'a str>,
}

impl WireFormatState {
    pub(in crate::stream) fn new(format: WireFormat) -> Self {
        Self(AtomicU8::new(if format == WireFormat::Cbor { TRIED } else { JSON }))
    }

    /// Returns the format of the next request.
    pub(in crate::stream) fn format(&self) -> WireFormat {
        if self.0.load(Ordering::Relaxed) == JSON { WireFormat::Json } else { WireFormat::Cbor }
    }

    /// Updates the state from a reply to a CBOR request.
    pub(super) fn note_reply(&self, answer: CborReply<'_>) {
        if self.0.load(Ordering::Relaxed) != TRIED {
            return;
        }
        match answer {
            CborReply { error: Some("SerializationException"), .. } => {
                self.mark_unsupported("it cannot parse a CBOR request");
            }
            CborReply { is_cbor: true, .. } => {
                // A concurrent call may have marked CBOR as unsupported in the meantime.
                let order = Ordering::Relaxed;
                let _ = self.0.compare_exchange(TRIED, WORKS, order, order);
            }
            CborReply { error: Some(_), .. } => {
                self.mark_unsupported("its error reply to a CBOR request is not CBOR");
            }
            CborReply { error: None, .. } => {}
        }
    }

    /// Switches to JSON, and logs `why` the first time.
    pub(super) fn mark_unsupported(&self, why: &str) {
        if self.0.swap(JSON, Ordering::Relaxed) != JSON {
            tracing::warn!(
                "the endpoint does not support Kinesis' CBOR format ({why}); this client uses JSON \
                 from now on. Set WireFormat::Json, or AWS_CBOR_DISABLE=true, to start with JSON"
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
        // A proxy in front of Kinesis may send an occasional reply of its own.
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
