//! CloudWatch's `PutMetricData`, accepted and counted, so that clients with metrics on don't fail.
//!
//! SDKs speak three protocols: JSON 1.0, the Query protocol (a form body, an XML answer) and
//! RPC v2 CBOR. A gzip body is accepted unread; what can't be read is counted as a call without data.

use std::sync::atomic::{AtomicU64, Ordering};

/// The protocol of a CloudWatch request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `X-Amz-Target` and JSON.
    Json,
    /// `Action=…` in a form.
    Query,
    /// A path with the operation's name, and CBOR.
    Rpc,
}

/// What came in. The values themselves are not kept.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Calls of `PutMetricData`.
    calls: AtomicU64,
    /// Metric data in those calls, where the body could be read.
    data: AtomicU64,
}

impl Metrics {
    /// Calls and metric data so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.data.load(Ordering::Relaxed))
    }

    /// Takes one call: the content type and the body of its answer.
    pub(crate) fn accept(&self, protocol: Protocol, body: &[u8]) -> (&'static str, &'static [u8]) {
        let data = match protocol {
            Protocol::Json => json_data(body),
            Protocol::Query => query_data(body),
            Protocol::Rpc => cbor_data(body),
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.data.fetch_add(data as u64, Ordering::Relaxed);
        match protocol {
            Protocol::Json => ("application/x-amz-json-1.0", b"{}"),
            Protocol::Query => ("text/xml", QUERY_ANSWER),
            Protocol::Rpc => ("application/cbor", b"\xa0"),
        }
    }
}

const QUERY_ANSWER: &[u8] =
    b"<PutMetricDataResponse xmlns=\"http://monitoring.amazonaws.com/doc/2010-08-01/\">\
      <ResponseMetadata><RequestId>00000000-0000-0000-0000-000000000000</RequestId>\
      </ResponseMetadata></PutMetricDataResponse>";

fn json_data(body: &[u8]) -> usize {
    let body: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    body.and_then(|body| body["MetricData"].as_array().map(Vec::len)).unwrap_or(0)
}

fn query_data(body: &[u8]) -> usize {
    let name = |field: &[u8]| field.starts_with(b"MetricData.member.") && is_name(field);
    body.split(|byte| *byte == b'&').filter(|field| name(field)).count()
}

/// Each datum has one `MetricName`.
fn is_name(field: &[u8]) -> bool {
    let key = field.split(|byte| *byte == b'=').next().unwrap_or_default();
    key.ends_with(b".MetricName")
}

fn cbor_data(body: &[u8]) -> usize {
    let body = crate::wire::cbor::value::from_cbor(body).ok();
    body.and_then(|body| body["MetricData"].as_array().map(Vec::len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_data_are_counted_in_all_three_protocols() {
        for (protocol, body, data) in [
            (Protocol::Json, &br#"{"Namespace":"n","MetricData":[{},{}]}"#[..], 2),
            (Protocol::Json, b"\x1f\x8b\x08", 0),
            (
                Protocol::Query,
                b"Action=PutMetricData&MetricData.member.1.MetricName=a&\
                  MetricData.member.1.Value=1&MetricData.member.2.MetricName=b",
                2,
            ),
            (Protocol::Rpc, b"\xa1\x6aMetricData\x83\xa0\xa0\xa0", 3),
            (Protocol::Rpc, b"\xa1", 0),
        ] {
            let metrics = Metrics::default();
            metrics.accept(protocol, body);
            assert_eq!(metrics.counts(), (1, data), "{protocol:?}");
        }
    }
}
