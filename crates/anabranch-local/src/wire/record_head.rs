//! The part of a record before its data, in JSON or CBOR: sequence number and arrival time.
//!
//! From one record of a reply to the next, usually only the counter in the sequence number advances
//! by one. So the text is kept for a hundred counters, and the last two digits are patched in a
//! copy.

use anabranch_model::sequence::SEQUENCE_NUMBER_MAX_DIGITS;

use super::cbor::write;
use super::json;
use crate::record_batch::SequenceBase;

/// Number of digits of each of the three limbs of a sequence number.
const LIMB_DIGITS: usize = SEQUENCE_NUMBER_MAX_DIGITS / 3;

/// Number of counters that share a text: those that differ only in the last two digits.
const SHARED: u64 = 100;

/// All pairs of decimal digits.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut pair = 0_u8;
    while pair < 100 {
        pairs[pair as usize] = [b'0' + pair / 10, b'0' + pair % 10];
        pair += 1;
    }
    pairs
};

/// The encoding of the text.
enum HeadFormat {
    Json,
    Cbor,
}

/// The text before the data of a record, for consecutive records of one shard.
pub(crate) struct RecordHead {
    form: HeadFormat,
    /// The shard's part of every sequence number.
    stamp: SequenceBase,
    /// The text of one record, from its start to that of its data.
    text: Vec<u8>,
    /// The counter divided by 100, for which the text is valid.
    hundred: Option<u64>,
    /// Offset of the last two digits of the counter in the text.
    pair_at: usize,
    /// The arrival time in the text, in milliseconds since 1970.
    arrival_ms: u64,
}

impl RecordHead {
    pub(crate) fn json(stamp: SequenceBase) -> Self {
        Self::new(HeadFormat::Json, stamp)
    }

    pub(crate) fn cbor(stamp: SequenceBase) -> Self {
        Self::new(HeadFormat::Cbor, stamp)
    }

    fn new(form: HeadFormat, stamp: SequenceBase) -> Self {
        Self { form, stamp, text: Vec::new(), hundred: None, pair_at: 0, arrival_ms: 0 }
    }

    /// Writes the part of a record before its data. In JSON it ends with the opening quote.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>, counter: u64, arrival_ms: u64) {
        if self.hundred != Some(counter / SHARED) || self.arrival_ms != arrival_ms {
            self.renew(counter, arrival_ms);
        }
        let pair_at = out.len() + self.pair_at;
        out.extend_from_slice(&self.text);
        // Patches the digits in the copy. Copying text whose digits were just written would wait
        // for that write.
        let pair = PAIRS[usize::try_from(counter % SHARED).expect("below a hundred")];
        out[pair_at..pair_at + pair.len()].copy_from_slice(&pair);
    }

    /// Formats the text for a counter and those that share it.
    fn renew(&mut self, counter: u64, arrival_ms: u64) {
        let number = self.stamp.number(counter);
        let out = &mut self.text;
        out.clear();
        let digits_end = match self.form {
            HeadFormat::Json => {
                out.extend_from_slice(b"{\"SequenceNumber\":\"");
                number.write_digits(out);
                let digits_end = out.len();
                out.extend_from_slice(b"\",\"ApproximateArrivalTimestamp\":");
                json::time(out, arrival_ms);
                out.extend_from_slice(b",\"Data\":\"");
                digits_end
            }
            HeadFormat::Cbor => {
                write::map(out, 4);
                write::text(out, "SequenceNumber");
                let mut digits = Vec::with_capacity(SEQUENCE_NUMBER_MAX_DIGITS);
                number.write_digits(&mut digits);
                write::utf8(out, &digits);
                let digits_end = out.len();
                write::text(out, "ApproximateArrivalTimestamp");
                write::time(out, i64::try_from(arrival_ms).unwrap_or(i64::MAX));
                write::text(out, "Data");
                digits_end
            }
        };
        // The high limb is never 0, so the counter is written with all its digits.
        self.pair_at = digits_end - LIMB_DIGITS - PAIRS[0].len();
        self.hundred = Some(counter / SHARED);
        self.arrival_ms = arrival_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::super::cbor::value;
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Completes a head to a whole record and parses it.
    fn json_record(head: &[u8]) -> Value {
        let text = [head, b"eA==\",\"PartitionKey\":\"k\"}"].concat();
        serde_json::from_slice(&text).unwrap()
    }

    fn cbor_record(head: &[u8]) -> Value {
        let mut out = head.to_vec();
        write::blob(&mut out, b"x");
        write::text(&mut out, "PartitionKey");
        write::text(&mut out, "k");
        value::from_cbor(&out).unwrap()
    }

    proptest! {
        #[test]
        fn every_head_says_the_number_and_the_time_of_its_record(
            runs in prop::collection::vec(
                (
                    prop_oneof![0..2_000_u64, Just(9_999_999_999_999_999_000)],
                    0..2_000_000_000_000_u64,
                ),
                1..4,
            ),
            high in 1..10_000_000_000_000_000_000_u64,
            low: u32,
        ) {
            let stamp = SequenceBase { high, low };
            let (mut json, mut cbor) = (RecordHead::json(stamp), RecordHead::cbor(stamp));
            for (start, arrival) in runs {
                for step in 0..250 {
                    // Some steps skip counters, and the time advances independently.
                    let counter = start + step + step / 50 * 7;
                    let arrival_ms = arrival + step / 20 * 997;
                    let (mut in_json, mut in_cbor) = (b" ".to_vec(), Vec::new());
                    json.write(&mut in_json, counter, arrival_ms);
                    cbor.write(&mut in_cbor, counter, arrival_ms);
                    let record = json_record(&in_json);
                    prop_assert_eq!(&record, &cbor_record(&in_cbor));
                    let time = format!("{}.{:03}", arrival_ms / 1000, arrival_ms % 1000);
                    prop_assert_eq!(record, json!({
                        "SequenceNumber": stamp.number(counter).to_string(),
                        "ApproximateArrivalTimestamp": time.parse::<f64>().unwrap(),
                        "Data": "eA==",
                        "PartitionKey": "k",
                    }));
                }
            }
        }
    }
}
