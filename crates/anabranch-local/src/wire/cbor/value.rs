//! CBOR to and from `serde_json::Value`, for all but the hot operations.
//!
//! Two kinds of value do not exist in JSON. A byte string becomes base64 text. A time is whole
//! milliseconds in CBOR and seconds with a fraction in JSON. Times are recognized by tag 1, or by a
//! field name that ends in `Timestamp` (no other field of the API has such a name). Byte strings
//! are never written, because none of these replies contains one.

use serde_json::{Map, Number, Value};

use super::{CborCursor, MalformedCbor, write};
use anabranch_model::cbor::{MAX_DEPTH, TAG_TIME, major};

/// Decodes a whole body. As in JSON, an empty body is an empty request.
pub(crate) fn from_cbor(body: &[u8]) -> Result<Value, MalformedCbor> {
    if body.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let mut cursor = CborCursor::new(body);
    let value = read(&mut cursor, MAX_DEPTH, false)?;
    cursor.finish()?;
    Ok(value)
}

/// Encodes a whole body.
pub(crate) fn to_cbor(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    put(&mut out, value, false);
    out
}

fn is_time(field: &str) -> bool {
    field.ends_with("Timestamp")
}

fn read(cursor: &mut CborCursor<'_>, depth: u8, time: bool) -> Result<Value, MalformedCbor> {
    let depth = depth.checked_sub(1).ok_or(MalformedCbor("CBOR nested too deep"))?;
    match cursor.peek()? >> 5 {
        major::UNSIGNED | major::NEGATIVE => {
            let integer = cursor.integer()?;
            if time { milliseconds(integer) } else { Ok(integer.into()) }
        }
        major::BYTES => Ok(base64_simd::STANDARD.encode_to_string(cursor.blob()?).into()),
        major::TEXT => Ok(cursor.text()?.into_owned().into()),
        major::ARRAY => {
            let mut items = cursor.array()?;
            let mut list = Vec::new();
            while cursor.more(&mut items)? {
                list.push(read(cursor, depth, time)?);
            }
            Ok(Value::Array(list))
        }
        major::MAP => {
            let mut items = cursor.map()?;
            let mut map = Map::new();
            while cursor.more(&mut items)? {
                let field = cursor.text()?.into_owned();
                let value = read(cursor, depth, is_time(&field))?;
                map.insert(field, value);
            }
            Ok(Value::Object(map))
        }
        major::TAG => {
            let tag = cursor.tag()?;
            read(cursor, depth, time || tag == Some(TAG_TIME))
        }
        _ => simple(cursor),
    }
}

/// Reads null, a boolean or a float. A float under tag 1 is in seconds, as in RFC 8949; only whole
/// numbers are AWS's milliseconds.
fn simple(cursor: &mut CborCursor<'_>) -> Result<Value, MalformedCbor> {
    if cursor.null()? {
        return Ok(Value::Null);
    }
    if matches!(cursor.peek()?, 0xf4 | 0xf5) {
        return cursor.boolean().map(Value::Bool);
    }
    let float = Number::from_f64(cursor.number()?);
    float.map(Value::Number).ok_or(MalformedCbor("a number that is not finite"))
}

#[expect(clippy::cast_precision_loss, reason = "times of this age are exact to the millisecond")]
fn milliseconds(ms: i64) -> Result<Value, MalformedCbor> {
    let seconds = Number::from_f64(ms as f64 / 1000.0);
    seconds.map(Value::Number).ok_or(MalformedCbor("a time that is not finite"))
}

fn put(out: &mut Vec<u8>, value: &Value, time: bool) {
    match value {
        Value::Null => write::null(out),
        Value::Bool(value) => write::boolean(out, *value),
        Value::Number(number) if time => write::time(out, seconds(number)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => write::unsigned(out, value),
            (None, Some(value)) => write::integer(out, value),
            (None, None) => write::float(out, number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => write::text(out, text),
        Value::Array(list) => {
            write::array(out, list.len());
            for item in list {
                put(out, item, time);
            }
        }
        Value::Object(map) => {
            write::map(out, map.len());
            for (field, value) in map {
                write::text(out, field);
                put(out, value, is_time(field));
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, it never wraps")]
fn seconds(number: &Number) -> i64 {
    (number.as_f64().unwrap_or_default() * 1000.0).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn every_kind_of_value_has_its_json() {
        for (bytes, value) in [
            (&b""[..], json!({})),
            (b"\xa0", json!({})),
            (b"\xa1\x65Limit\x19\x01\x00", json!({"Limit": 256})),
            (b"\xbf\x61a\x9f\x01\x20\xff\xff", json!({"a": [1, -1]})),
            (b"\xa1\x64Data\x43abc", json!({"Data": "YWJj"})),
            (b"\xa2\x61t\xf5\x61f\xf4", json!({"t": true, "f": false})),
            (b"\xa1\x61n\xf6", json!({"n": null})),
            (b"\xa1\x61h\xf9\x3e\x00", json!({"h": 1.5})),
            (b"\xa1\x61s\xfa\x3f\xc0\x00\x00", json!({"s": 1.5})),
            (b"\xa1\x61d\xfb\x3f\xf8\x00\x00\x00\x00\x00\x00", json!({"d": 1.5})),
            (
                b"\xa1\x69Timestamp\xc1\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d",
                json!({"Timestamp": 1_603_152_823.565}),
            ),
            (
                b"\xa1\x69Timestamp\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d",
                json!({"Timestamp": 1_603_152_823.565}),
            ),
            (b"\xa1\x69Timestamp\xc1\xfb\x3f\xf8\0\0\0\0\0\0", json!({"Timestamp": 1.5})),
        ] {
            assert_eq!(from_cbor(bytes), Ok(value), "{bytes:x?}");
        }
    }

    #[test]
    fn bodies_that_are_no_cbor_document_are_refused() {
        for bytes in [
            &b"\xa1"[..],
            b"\xa1\x01\x02",
            b"\xa0\xa0",
            b"\xff",
            b"\xf9\x7c\x00",
            b"\xf9\x7e\x00",
            b"\xf8\x20",
            b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"{\"StreamName\":\"s\"}",
        ] {
            assert!(from_cbor(bytes).is_err(), "{bytes:x?}");
        }
        assert!(from_cbor(&vec![0x81; 1_000_000]).is_err());
    }

    #[test]
    fn replies_carry_times_in_milliseconds_under_tag_one() {
        let reply = json!({"StreamCreationTimestamp": 1_603_152_823.565});
        let bytes = to_cbor(&reply);
        assert!(bytes.ends_with(b"\xc1\x1b\x00\x00\x01\x75\x43\x5a\xc5\x0d"), "{bytes:x?}");
        assert_eq!(from_cbor(&bytes), Ok(reply));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(|float: f64| Value::from(float)),
            ".{0,30}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map("[a-zA-Z]{0,8}", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value in any_value()) {
            prop_assert_eq!(from_cbor(&to_cbor(&value)), Ok(value));
        }

        #[test]
        fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = from_cbor(&bytes);
            let _ = CborCursor::new(&bytes).skip();
        }

        #[test]
        fn no_damage_to_a_body_makes_it_panic(
            value in any_value(), at: prop::sample::Index, flip in 1_u8..,
        ) {
            let mut bytes = to_cbor(&value);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let _ = from_cbor(&bytes);
            bytes.truncate(at);
            let _ = from_cbor(&bytes);
        }
    }
}
