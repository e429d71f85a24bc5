//! Building and parsing the ARNs of streams and their consumers.

/// The account and region that an engine emulates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccountRegion {
    pub(crate) account: String,
    pub(crate) region: String,
}

impl AccountRegion {
    pub(crate) fn stream_arn(&self, stream: &str) -> String {
        format!("arn:aws:kinesis:{}:{}:stream/{stream}", self.region, self.account)
    }

    /// Returns the ARN of a consumer. It ends with the creation time in seconds, so that a consumer
    /// created later under the same name has a different ARN.
    pub(crate) fn consumer_arn(&self, stream: &str, consumer: &str, created_ms: u64) -> String {
        format!("{}/consumer/{consumer}:{}", self.stream_arn(stream), created_ms / 1000)
    }
}

/// The parts of an ARN of a stream or consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParsedArn<'a> {
    pub(crate) region: &'a str,
    pub(crate) account: &'a str,
    pub(crate) stream: &'a str,
    /// `name:creation` of a consumer, if the ARN names one.
    pub(crate) consumer: Option<&'a str>,
}

/// Parses the ARN of a stream or consumer. Returns `None` if it is neither.
pub(crate) fn parse(arn: &str) -> Option<ParsedArn<'_>> {
    let mut parts = arn.splitn(6, ':');
    let (scheme, partition) = (parts.next()?, parts.next()?);
    let (service, region, account) = (parts.next()?, parts.next()?, parts.next()?);
    let path = parts.next()?.strip_prefix("stream/")?;
    let named = scheme == "arn" && partition.starts_with("aws") && service == "kinesis";
    let numbered = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
    let (stream, consumer) = match path.split_once("/consumer/") {
        Some((stream, consumer)) => (stream, Some(consumer)),
        None => (path, None),
    };
    let whole = !stream.is_empty() && !stream.contains(['/', ' ']) && consumer != Some("");
    (named && numbered && whole).then_some(ParsedArn { region, account, stream, consumer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arns_are_taken_apart_as_they_were_built() {
        let home = AccountRegion { account: "123456789012".into(), region: "eu-west-1".into() };
        let stream = home.stream_arn("orders");
        let parsed = parse(&stream).unwrap();
        assert_eq!((parsed.stream, parsed.consumer), ("orders", None));
        assert_eq!((parsed.region, parsed.account), ("eu-west-1", "123456789012"));
        let consumer = home.consumer_arn("orders", "app", 1_700_000_000_123);
        assert_eq!(parse(&consumer).unwrap().consumer, Some("app:1700000000"));
    }

    #[test]
    fn other_texts_are_no_arns() {
        for text in [
            "",
            "orders",
            "arn:aws:kinesis:us-east-1:123:stream/orders",
            "arn:aws:s3:us-east-1:123456789012:stream/orders",
            "arn:aws:kinesis:us-east-1:123456789012:stream/",
            "arn:aws:kinesis:us-east-1:123456789012:table/orders",
            "arn:aws:kinesis:us-east-1:123456789012:stream/a/b",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
