//! Frames of `application/vnd.amazon.eventstream`, which make up the body of a `SubscribeToShard`
//! reply.
//!
//! ```text
//! total length u32 | headers length u32 | crc32 of these 8 bytes
//!     | headers | payload | crc32 of everything before
//! header: name length u8 | name | 7 (string) | value length u16 | value
//! ```

#![expect(clippy::cast_possible_truncation, reason = "names and values are short, frames < 16 MiB")]

/// Encodes the first frame. The call in JavaScript returns only once it has arrived, and Go fails
/// without it.
pub(crate) fn initial_response() -> Vec<u8> {
    event("initial-response", b"{}")
}

/// Encodes a frame with an event in JSON.
pub(crate) fn event(kind: &str, json: &[u8]) -> Vec<u8> {
    let headers =
        [(":message-type", "event"), (":event-type", kind), (":content-type", "application/json")];
    frame(&headers, json)
}

/// Encodes a frame that ends the stream with a modelled error.
pub(crate) fn exception(kind: &str, json: &[u8]) -> Vec<u8> {
    let headers = [
        (":message-type", "exception"),
        (":exception-type", kind),
        (":content-type", "application/json"),
    ];
    frame(&headers, json)
}

/// The type byte of a string header.
const STRING: u8 = 7;
/// Bytes before the headers: two lengths and their checksum.
const PRELUDE_BYTES: usize = 12;
/// Bytes of a checksum.
const CRC_BYTES: usize = 4;

fn frame(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let headers_bytes: usize =
        headers.iter().map(|(name, value)| 1 + name.len() + 1 + 2 + value.len()).sum();
    let total = PRELUDE_BYTES + headers_bytes + payload.len() + CRC_BYTES;
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(&(total as u32).to_be_bytes());
    out.extend_from_slice(&(headers_bytes as u32).to_be_bytes());
    checksum(&mut out);
    for (name, value) in headers {
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        out.push(STRING);
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value.as_bytes());
    }
    out.extend_from_slice(payload);
    checksum(&mut out);
    out
}

fn checksum(out: &mut Vec<u8>) {
    let crc = crc32fast::hash(out);
    out.extend_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_smithy_eventstream::frame::read_message_from;

    /// Decodes a frame with the SDK's own decoder, which verifies both checksums and every length,
    /// and asserts its content.
    fn check(frame: &[u8], headers: &[(&str, &str)], payload: &[u8]) {
        let mut input = frame;
        let message = read_message_from(&mut input).expect("the SDK reads the frame");
        assert!(input.is_empty(), "one frame is one message");
        let got: Vec<_> = message
            .headers()
            .iter()
            .map(|h| (h.name().as_str(), h.value().as_string().unwrap().as_str()))
            .collect();
        assert_eq!(got, headers);
        assert_eq!(message.payload().as_ref(), payload);
    }

    #[test]
    fn the_sdk_reads_every_kind_of_frame() {
        let json = (":content-type", "application/json");
        let first = [(":message-type", "event"), (":event-type", "initial-response"), json];
        check(&initial_response(), &first, b"{}");

        let event_headers =
            [(":message-type", "event"), (":event-type", "SubscribeToShardEvent"), json];
        for payload in [&b""[..], b"{}", &vec![b'x'; 3_000_000]] {
            check(&event("SubscribeToShardEvent", payload), &event_headers, payload);
        }

        let exception_headers =
            [(":message-type", "exception"), (":exception-type", "ResourceInUseException"), json];
        let body = br#"{"message":"taken over"}"#;
        check(&exception("ResourceInUseException", body), &exception_headers, body);
    }
}
