//! The target of a request: its service, its operation and its encoding.

use http::{HeaderMap, header};

/// The encoding of a Kinesis request and of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// `application/x-amz-json-1.1`, or 1.0, or plain JSON.
    Json,
    /// `application/x-amz-cbor-1.1`.
    Cbor,
}

impl Encoding {
    /// Returns the encoding that the content type names. Anything but CBOR counts as JSON, because
    /// `curl` sends a form type by default, and people experiment with `curl`.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        if kind.starts_with(b"application/x-amz-cbor") { Self::Cbor } else { Self::Json }
    }

    /// Returns the content type of a response.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/x-amz-json-1.1",
            Self::Cbor => "application/x-amz-cbor-1.1",
        }
    }
}

/// The service and operation that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestTarget<'a> {
    /// An operation of Kinesis Data Streams.
    Kinesis(&'a str),
    /// An operation of DynamoDB or DynamoDB Streams.
    DynamoDb(&'a str),
    /// An operation of CloudWatch, such as `PutMetricData`.
    CloudWatch(&'a str),
    /// An unsupported service, or no target at all.
    Unknown,
}

impl<'a> RequestTarget<'a> {
    /// Parses the `X-Amz-Target` header.
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok());
        let Some((service, operation)) = target.and_then(|target| target.split_once('.')) else {
            return Self::Unknown;
        };
        match service {
            "Kinesis_20131202" => Self::Kinesis(operation),
            "DynamoDB_20120810" | "DynamoDBStreams_20120810" => Self::DynamoDb(operation),
            "GraniteServiceVersion20100801" => Self::CloudWatch(operation),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(name),
            value.parse().expect("a header value"),
        )])
    }

    #[test]
    fn the_target_header_names_service_and_operation() {
        for (header, target) in [
            ("Kinesis_20131202.PutRecords", RequestTarget::Kinesis("PutRecords")),
            ("DynamoDB_20120810.Scan", RequestTarget::DynamoDb("Scan")),
            ("DynamoDBStreams_20120810.ListStreams", RequestTarget::DynamoDb("ListStreams")),
            (
                "GraniteServiceVersion20100801.PutMetricData",
                RequestTarget::CloudWatch("PutMetricData"),
            ),
            ("Kinesis_20131202", RequestTarget::Unknown),
            ("Kinesis_20991231.PutRecords", RequestTarget::Unknown),
            ("", RequestTarget::Unknown),
        ] {
            assert_eq!(RequestTarget::of(&headers("x-amz-target", header)), target, "{header}");
        }
        assert_eq!(RequestTarget::of(&HeaderMap::new()), RequestTarget::Unknown);
    }

    #[test]
    fn the_answer_speaks_the_content_type_of_the_request() {
        for (kind, encoding) in [
            ("application/x-amz-json-1.1", Encoding::Json),
            ("application/x-amz-json-1.0", Encoding::Json),
            ("application/x-amz-cbor-1.1", Encoding::Cbor),
            ("application/x-amz-cbor-1.1; charset=utf-8", Encoding::Cbor),
            ("application/x-www-form-urlencoded", Encoding::Json),
        ] {
            assert_eq!(Encoding::of(&headers("content-type", kind)), encoding, "{kind}");
        }
        assert_eq!(Encoding::of(&HeaderMap::new()), Encoding::Json);
    }
}
