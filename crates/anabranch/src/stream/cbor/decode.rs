//! Decodes a CBOR reply into an SDK output. Record data are slices of the reply, not copies.

use super::records::{self, invalid};
use super::wire_format::WireFormatState;
use anabranch_model::cbor::CborCursor;
use aws_smithy_schema::Schema;
use aws_smithy_schema::serde::{SerdeError, ShapeDeserializer};
use aws_smithy_types::{BigDecimal, BigInteger, Blob, DateTime, Document};
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;

/// Decoder of one body.
pub(super) struct CborDecoder<'a> {
    /// Position in the body.
    cursor: CborCursor<'a>,
    /// The same body in shareable form.
    shared: Bytes,
    /// True if records are captured by [`records`] instead of being built by the SDK.
    gives_records: bool,
    /// Notified when the body is not Kinesis' CBOR.
    spoken: Arc<WireFormatState>,
}

impl<'a> CborDecoder<'a> {
    /// Creates a decoder of `body`. `shared` holds the same bytes, if they can be shared.
    pub(super) fn new(body: &'a [u8], shared: Option<Bytes>, spoken: Arc<WireFormatState>) -> Self {
        let shared = shared.unwrap_or_else(|| Bytes::copy_from_slice(body));
        let gives_records = records::is_wanted();
        Self { cursor: CborCursor::new(body), shared, gives_records, spoken }
    }
}

/// Converts an integer to a narrower type.
fn fit<T: TryFrom<i64>>(value: i64) -> Result<T, SerdeError> {
    T::try_from(value).map_err(|_| SerdeError::invalid_input("a number too large"))
}

impl ShapeDeserializer for CborDecoder<'_> {
    /// An empty body is a structure without members, and a null member is absent. A body that ends
    /// inside a list or structure is an error.
    fn read_struct(
        &mut self,
        schema: &Schema<'_>,
        state: &mut dyn FnMut(&Schema<'_>, &mut dyn ShapeDeserializer) -> Result<(), SerdeError>,
    ) -> Result<(), SerdeError> {
        if self.cursor.position() == 0 && self.cursor.is_at_end() {
            return Ok(());
        }
        let mut members = self.cursor.map().map_err(invalid)?;
        while self.cursor.more(&mut members).map_err(invalid)? {
            let name = self.cursor.text().map_err(invalid)?;
            let has_records = self.gives_records && name == "Records";
            if has_records && !self.cursor.is_at_null() {
                records::capture(records::read(&mut self.cursor, &self.shared, &self.spoken)?);
                continue;
            }
            match schema.member_schema(&name) {
                Some(member) if !self.cursor.is_at_null() => state(member, self)?,
                _ => self.cursor.skip().map_err(invalid)?,
            }
        }
        Ok(())
    }

    fn read_list(
        &mut self,
        _: &Schema<'_>,
        state: &mut dyn FnMut(&mut dyn ShapeDeserializer) -> Result<(), SerdeError>,
    ) -> Result<(), SerdeError> {
        let mut items = self.cursor.array().map_err(invalid)?;
        while self.cursor.more(&mut items).map_err(invalid)? {
            state(self)?;
        }
        Ok(())
    }

    fn read_map(
        &mut self,
        schema: &Schema<'_>,
        state: &mut dyn FnMut(String, &mut dyn ShapeDeserializer) -> Result<(), SerdeError>,
    ) -> Result<(), SerdeError> {
        let mut entries = self.cursor.map().map_err(invalid)?;
        while self.cursor.more(&mut entries).map_err(invalid)? {
            let key = self.read_string(schema)?;
            state(key, self)?;
        }
        Ok(())
    }

    fn read_boolean(&mut self, _: &Schema<'_>) -> Result<bool, SerdeError> {
        self.cursor.boolean().map_err(invalid)
    }

    fn read_byte(&mut self, schema: &Schema<'_>) -> Result<i8, SerdeError> {
        fit(self.read_long(schema)?)
    }

    fn read_short(&mut self, schema: &Schema<'_>) -> Result<i16, SerdeError> {
        fit(self.read_long(schema)?)
    }

    fn read_integer(&mut self, schema: &Schema<'_>) -> Result<i32, SerdeError> {
        fit(self.read_long(schema)?)
    }

    fn read_long(&mut self, _: &Schema<'_>) -> Result<i64, SerdeError> {
        self.cursor.integer().map_err(invalid)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, it never wraps")]
    fn read_float(&mut self, schema: &Schema<'_>) -> Result<f32, SerdeError> {
        Ok(self.read_double(schema)? as f32)
    }

    fn read_double(&mut self, _: &Schema<'_>) -> Result<f64, SerdeError> {
        self.cursor.number().map_err(invalid)
    }

    fn read_big_integer(&mut self, _: &Schema<'_>) -> Result<BigInteger, SerdeError> {
        Err(SerdeError::unsupported("Kinesis has no big integer"))
    }

    fn read_big_decimal(&mut self, _: &Schema<'_>) -> Result<BigDecimal, SerdeError> {
        Err(SerdeError::unsupported("Kinesis has no big decimal"))
    }

    fn read_string(&mut self, _: &Schema<'_>) -> Result<String, SerdeError> {
        self.cursor.text().map(Cow::into_owned).map_err(invalid)
    }

    fn read_blob(&mut self, _: &Schema<'_>) -> Result<Blob, SerdeError> {
        let blob = records::blob(&mut self.cursor, &self.shared, &self.spoken)?;
        Ok(Blob::from_maybe_shared(blob))
    }

    fn read_timestamp(&mut self, _: &Schema<'_>) -> Result<DateTime, SerdeError> {
        self.cursor.time_ms().map(DateTime::from_millis).map_err(invalid)
    }

    fn read_document(&mut self, _: &Schema<'_>) -> Result<Document, SerdeError> {
        Err(SerdeError::unsupported("Kinesis has no document"))
    }

    fn is_null(&self) -> bool {
        self.cursor.is_at_null()
    }

    fn read_null(&mut self) -> Result<(), SerdeError> {
        self.cursor.null().map(drop).map_err(invalid)
    }

    fn skip_value(&mut self) -> Result<(), SerdeError> {
        self.cursor.skip().map_err(invalid)
    }

    fn container_size(&self) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::cbor::wire_format::WireFormat;
    use aws_sdk_kinesis::operation::get_records::GetRecordsOutput;

    /// Decodes a reply both as the SDK does and with captured records. Both results must agree.
    fn read(body: &[u8]) -> Result<GetRecordsOutput, SerdeError> {
        let decode = || {
            let spoken = Arc::new(WireFormatState::new(WireFormat::Cbor));
            GetRecordsOutput::deserialize(&mut CborDecoder::new(body, None, spoken))
        };
        let whole = decode();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rest = runtime.block_on(records::with_captured_records(async { decode() }));
        assert_eq!(whole.is_ok(), rest.is_ok(), "{whole:?} {rest:?} {body:x?}");
        if let (Ok(whole), Ok((rest, basket))) = (&whole, rest) {
            assert!(rest.records.is_empty());
            assert_eq!(rest.next_shard_iterator, whole.next_shard_iterator);
            assert_eq!(rest.child_shards, whole.child_shards);
            let given: Vec<_> = basket.unwrap_or_default();
            assert_eq!(given.len(), whole.records.len());
            for (given, record) in given.iter().zip(&whole.records) {
                assert_eq!(given.sequence.to_string(), record.sequence_number);
                assert_eq!(Some(given.partition_key.as_str()), record.partition_key());
                assert_eq!(given.data, record.data.as_ref());
                let arrival =
                    record.approximate_arrival_timestamp.map(|at| at.to_millis().unwrap());
                assert_eq!(given.arrival_ms.cast_signed(), arrival.unwrap_or(0));
            }
        }
        whole
    }

    /// One record, one child shard, and all other members.
    const REPLY: &[u8] = b"\xa4\
        \x67Records\x81\xa4\
            \x64Data\x43abc\x6cPartitionKey\x61k\x6eSequenceNumber\x611\
            \x78\x1bApproximateArrivalTimestamp\xc1\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d\
        \x71NextShardIterator\x61i\
        \x72MillisBehindLatest\x00\
        \x6bChildShards\x81\xa3\
            \x67ShardId\x61s\x6cParentShards\x81\x61p\
            \x6cHashKeyRange\xa2\x6fStartingHashKey\x610\x6dEndingHashKey\x619";

    #[test]
    fn a_reply_is_read_whole_and_no_part_of_it_passes_for_one() {
        let whole = read(REPLY).unwrap();
        assert_eq!(whole.records()[0].data().as_ref(), b"abc");
        assert_eq!(whole.child_shards()[0].hash_key_range().unwrap().ending_hash_key(), "9");
        for end in 1..REPLY.len() {
            assert!(read(&REPLY[..end]).is_err(), "the first {end} bytes");
        }
    }

    #[test]
    fn a_list_or_map_that_claims_more_than_the_body_has_is_refused() {
        for body in [
            // A list that claims 2^56 records and has none.
            &b"\xa1\x67Records\x9b\x01\x00\x00\x00\x00\x00\x00\x00"[..],
            b"\xa1\x67Records\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xa1\x67Records\x9f",
            b"\xa1\x67Records\x82\xa2\x64Data\x40\x6eSequenceNumber\x611",
            b"\xbb\x01\x00\x00\x00\x00\x00\x00\x00",
            b"\xa1\x6bChildShards\x81\xa1\x6cHashKeyRange",
            b"\xa1\x64Else\x9b\x01\x00\x00\x00\x00\x00\x00\x00",
        ] {
            assert!(read(body).is_err(), "{body:x?}");
        }
    }
}
