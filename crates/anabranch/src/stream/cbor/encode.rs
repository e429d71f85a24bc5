//! Encodes an SDK input as CBOR like the SDKs for Java: with indefinite-length maps and arrays.

use super::body::SegmentedBody;
use anabranch_model::cbor::write;
use aws_smithy_schema::Schema;
use aws_smithy_schema::serde::{SerdeError, SerializableStruct, ShapeSerializer};
use aws_smithy_types::{BigDecimal, BigInteger, Blob, DateTime, Document};
use bytes::Bytes;

/// Data of at least this size are sent in place instead of being copied.
const APART_BYTES: usize = 16 * 1024;

/// Encoder of one body.
pub(super) struct CborEncoder {
    /// Encoded bytes, except the data in `apart`.
    out: Vec<u8>,
    /// Large data, each with the number of bytes in `out` before it.
    apart: Vec<(usize, Bytes)>,
    /// True inside a structure, whose members are preceded by their names.
    named: bool,
    /// True once a timestamp has been written.
    has_time: bool,
}

impl CborEncoder {
    pub(super) fn new() -> Self {
        Self { out: Vec::with_capacity(512), apart: Vec::new(), named: false, has_time: false }
    }

    /// Returns the body, and true if it contains a timestamp.
    pub(super) fn finish(self) -> (SegmentedBody, bool) {
        let written = Bytes::from(self.out);
        let mut pieces = Vec::with_capacity(self.apart.len() * 2 + 1);
        let mut from = 0;
        for (upto, data) in self.apart {
            pieces.extend([written.slice(from..upto), data]);
            from = upto;
        }
        pieces.push(written.slice(from..));
        (SegmentedBody::new(pieces), self.has_time)
    }

    #[inline]
    fn name(&mut self, schema: &Schema<'_>) {
        if self.named
            && let Some(name) = schema.member_name()
        {
            write::text(&mut self.out, name);
        }
    }

    /// Writes the content of a map or array, and closes it.
    fn inside(
        &mut self,
        named: bool,
        fill: impl FnOnce(&mut Self) -> Result<(), SerdeError>,
    ) -> Result<(), SerdeError> {
        let outer = std::mem::replace(&mut self.named, named);
        fill(self)?;
        self.named = outer;
        write::close(&mut self.out);
        Ok(())
    }
}

impl ShapeSerializer for CborEncoder {
    fn write_struct(
        &mut self,
        schema: &Schema<'_>,
        value: &dyn SerializableStruct,
    ) -> Result<(), SerdeError> {
        self.name(schema);
        write::open_map(&mut self.out);
        self.inside(true, |inner| value.serialize_members(inner))
    }

    fn write_list(
        &mut self,
        schema: &Schema<'_>,
        write_elements: &dyn Fn(&mut dyn ShapeSerializer) -> Result<(), SerdeError>,
    ) -> Result<(), SerdeError> {
        self.name(schema);
        write::open_array(&mut self.out);
        self.inside(false, |inner| write_elements(inner))
    }

    /// Keys are written by the caller as separate strings.
    fn write_map(
        &mut self,
        schema: &Schema<'_>,
        write_entries: &dyn Fn(&mut dyn ShapeSerializer) -> Result<(), SerdeError>,
    ) -> Result<(), SerdeError> {
        self.name(schema);
        write::open_map(&mut self.out);
        self.inside(false, |inner| write_entries(inner))
    }

    fn write_boolean(&mut self, schema: &Schema<'_>, value: bool) -> Result<(), SerdeError> {
        self.name(schema);
        write::boolean(&mut self.out, value);
        Ok(())
    }

    fn write_byte(&mut self, schema: &Schema<'_>, value: i8) -> Result<(), SerdeError> {
        self.write_long(schema, value.into())
    }

    fn write_short(&mut self, schema: &Schema<'_>, value: i16) -> Result<(), SerdeError> {
        self.write_long(schema, value.into())
    }

    fn write_integer(&mut self, schema: &Schema<'_>, value: i32) -> Result<(), SerdeError> {
        self.write_long(schema, value.into())
    }

    fn write_long(&mut self, schema: &Schema<'_>, value: i64) -> Result<(), SerdeError> {
        self.name(schema);
        write::integer(&mut self.out, value);
        Ok(())
    }

    fn write_float(&mut self, schema: &Schema<'_>, value: f32) -> Result<(), SerdeError> {
        self.write_double(schema, value.into())
    }

    fn write_double(&mut self, schema: &Schema<'_>, value: f64) -> Result<(), SerdeError> {
        self.name(schema);
        write::float(&mut self.out, value);
        Ok(())
    }

    fn write_big_integer(&mut self, _: &Schema<'_>, _: &BigInteger) -> Result<(), SerdeError> {
        Err(SerdeError::unsupported("Kinesis has no big integer"))
    }

    fn write_big_decimal(&mut self, _: &Schema<'_>, _: &BigDecimal) -> Result<(), SerdeError> {
        Err(SerdeError::unsupported("Kinesis has no big decimal"))
    }

    fn write_string(&mut self, schema: &Schema<'_>, value: &str) -> Result<(), SerdeError> {
        self.name(schema);
        write::text(&mut self.out, value);
        Ok(())
    }

    fn write_blob(&mut self, schema: &Schema<'_>, value: Blob) -> Result<(), SerdeError> {
        self.name(schema);
        if value.as_ref().len() < APART_BYTES {
            write::blob(&mut self.out, value.as_ref());
        } else {
            write::blob_head(&mut self.out, value.as_ref().len());
            self.apart.push((self.out.len(), value.into_bytes()));
        }
        Ok(())
    }

    fn write_timestamp(&mut self, schema: &Schema<'_>, value: &DateTime) -> Result<(), SerdeError> {
        self.name(schema);
        let ms = value.to_millis().map_err(|error| SerdeError::custom(error.to_string()))?;
        write::time(&mut self.out, ms);
        self.has_time = true;
        Ok(())
    }

    fn write_document(&mut self, _: &Schema<'_>, _: &Document) -> Result<(), SerdeError> {
        Err(SerdeError::unsupported("Kinesis has no document"))
    }

    fn write_null(&mut self, schema: &Schema<'_>) -> Result<(), SerdeError> {
        self.name(schema);
        write::null(&mut self.out);
        Ok(())
    }
}
