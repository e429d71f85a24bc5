//! CloudWatch's `PutMetricData`, accepted and counted, so that clients that send metrics do not
//! fail.
//!
//! SDKs use three protocols: JSON 1.0, the Query protocol (a form body, an XML answer) and RPC v2
//! CBOR. Large bodies are compressed with gzip. An unreadable body counts as a call without data.
//! The newest data sent as JSON and CBOR are kept for inspection by tests.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::lock;

/// Number of metric data kept.
const KEPT: usize = 10_000;
/// Maximum size of a decompressed body. It is more than the service accepts.
const UNPACKED_MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The protocol of a CloudWatch request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloudWatchProtocol {
    /// `X-Amz-Target` and JSON.
    Json,
    /// `Action=…` in a form.
    Query,
    /// A path with the operation's name, and CBOR.
    Rpc,
}

/// The metrics received so far.
#[derive(Debug, Default)]
pub(crate) struct ReceivedMetrics {
    /// Number of calls of `PutMetricData`.
    calls: AtomicU64,
    /// Number of metric data in those calls, where the body was readable.
    data: AtomicU64,
    /// The newest data, each with its namespace.
    newest: Mutex<VecDeque<Value>>,
}

/// Decompresses a body. Returns it unchanged if it is not compressed or cannot be decompressed; in
/// that case it is unreadable later.
fn unpacked(body: &[u8]) -> Cow<'_, [u8]> {
    if !body.starts_with(b"\x1f\x8b") {
        return Cow::Borrowed(body);
    }
    let mut whole = Vec::new();
    match MultiGzDecoder::new(body).take(UNPACKED_MAX_BYTES).read_to_end(&mut whole) {
        Ok(_) => Cow::Owned(whole),
        Err(_) => Cow::Borrowed(body),
    }
}

impl ReceivedMetrics {
    /// Returns the newest data, oldest first, unchanged except for the added `Namespace`.
    pub(crate) fn newest(&self) -> Vec<Value> {
        lock::lock(&self.newest).iter().cloned().collect()
    }

    fn keep(&self, body: Option<Value>) -> usize {
        let Some(mut body) = body else { return 0 };
        let namespace = body["Namespace"].take();
        let Value::Array(data) = body["MetricData"].take() else { return 0 };
        let count = data.len();
        let mut newest = lock::lock(&self.newest);
        for mut datum in data {
            if let Value::Object(fields) = &mut datum {
                fields.insert("Namespace".to_owned(), namespace.clone());
            }
            if newest.len() == KEPT {
                newest.pop_front();
            }
            newest.push_back(datum);
        }
        count
    }

    /// Returns the number of calls and of metric data so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.data.load(Ordering::Relaxed))
    }

    /// Accepts one call. Returns the content type and the body of its answer.
    pub(crate) fn accept(
        &self,
        protocol: CloudWatchProtocol,
        body: &[u8],
    ) -> (&'static str, &'static [u8]) {
        let body = unpacked(body);
        let data = match protocol {
            CloudWatchProtocol::Json => self.keep(serde_json::from_slice(&body).ok()),
            CloudWatchProtocol::Query => query_data(&body),
            CloudWatchProtocol::Rpc => self.keep(crate::wire::cbor::value::from_cbor(&body).ok()),
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.data.fetch_add(data as u64, Ordering::Relaxed);
        match protocol {
            CloudWatchProtocol::Json => ("application/x-amz-json-1.0", b"{}"),
            CloudWatchProtocol::Query => ("text/xml", QUERY_ANSWER),
            CloudWatchProtocol::Rpc => ("application/cbor", b"\xa0"),
        }
    }
}

const QUERY_ANSWER: &[u8] =
    b"<PutMetricDataResponse xmlns=\"http://monitoring.amazonaws.com/doc/2010-08-01/\">\
      <ResponseMetadata><RequestId>00000000-0000-0000-0000-000000000000</RequestId>\
      </ResponseMetadata></PutMetricDataResponse>";

fn query_data(body: &[u8]) -> usize {
    let name = |field: &[u8]| field.starts_with(b"MetricData.member.") && is_name(field);
    body.split(|byte| *byte == b'&').filter(|field| name(field)).count()
}

/// Returns true for a `MetricName` field. Each datum has exactly one.
fn is_name(field: &[u8]) -> bool {
    let key = field.split(|byte| *byte == b'=').next().unwrap_or_default();
    key.ends_with(b".MetricName")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_data_are_counted_in_all_three_protocols() {
        for (protocol, body, data) in [
            (CloudWatchProtocol::Json, &br#"{"Namespace":"n","MetricData":[{},{}]}"#[..], 2),
            (CloudWatchProtocol::Json, b"\x1f\x8b\x08", 0),
            (
                CloudWatchProtocol::Query,
                b"Action=PutMetricData&MetricData.member.1.MetricName=a&\
                  MetricData.member.1.Value=1&MetricData.member.2.MetricName=b",
                2,
            ),
            (CloudWatchProtocol::Rpc, b"\xa1\x6aMetricData\x83\xa0\xa0\xa0", 3),
            (CloudWatchProtocol::Rpc, b"\xa1", 0),
        ] {
            let metrics = ReceivedMetrics::default();
            metrics.accept(protocol, body);
            assert_eq!(metrics.counts(), (1, data), "{protocol:?}");
        }
    }

    #[test]
    fn the_newest_data_are_kept_with_their_namespace_also_out_of_a_packed_body() {
        use std::io::Write;
        let body = br#"{"Namespace":"n","MetricData":[{"MetricName":"a"},{"MetricName":"b"}]}"#;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(body).unwrap();
        let packed = packed.finish().unwrap();
        for body in [&body[..], &packed] {
            let metrics = ReceivedMetrics::default();
            metrics.accept(CloudWatchProtocol::Json, body);
            let kept = metrics.newest();
            assert_eq!(kept[1], serde_json::json!({"MetricName": "b", "Namespace": "n"}));
        }
        let metrics = ReceivedMetrics::default();
        let body = br#"{"MetricData":[{}]}"#;
        (0..KEPT + 5).for_each(|_| _ = metrics.accept(CloudWatchProtocol::Json, body));
        assert_eq!((metrics.newest().len(), metrics.counts().0), (KEPT, KEPT as u64 + 5));
    }
}
