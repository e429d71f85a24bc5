//! Opaque tokens: shard iterators and pagination tokens.
//!
//! A token is base64 of its fields and a checksum, so that a text not issued here is rejected.

/// First byte of a token: its kind and version.
const ITERATOR: u8 = 1;
const LIST: u8 = 2;

/// A position in a shard, as a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardIterator {
    /// The stream's number. A later stream of the same name has another one.
    pub(crate) stream_id: u64,
    pub(crate) stream: String,
    pub(crate) shard: u32,
    /// The counter of the next record to read.
    pub(crate) counter: u64,
    /// Time of issue, in milliseconds since 1970.
    pub(crate) issued_ms: u64,
    /// The stream's iterator epoch at the time of issue.
    pub(crate) epoch: u64,
    /// The run of the engine that issued the iterator. Epochs restart at 0 in each run; without a
    /// data folder, so do stream numbers and counters.
    pub(crate) run: u64,
}

impl ShardIterator {
    pub(crate) fn to_text(&self) -> String {
        let mut out = vec![ITERATOR];
        let shard = u64::from(self.shard);
        for field in [self.stream_id, shard, self.counter, self.issued_ms, self.epoch, self.run] {
            out.extend_from_slice(&field.to_be_bytes());
        }
        out.extend_from_slice(self.stream.as_bytes());
        seal(out)
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let bytes = open(text, ITERATOR)?;
        let (fields, name) = bytes.split_at_checked(48)?;
        let [stream_id, shard, counter, issued_ms, epoch, run] = numbers(fields);
        let stream = String::from_utf8(name.to_vec()).ok()?;
        let shard = u32::try_from(shard).ok()?;
        Some(Self { stream_id, stream, shard, counter, issued_ms, epoch, run })
    }
}

/// A position in a list, as a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListToken {
    /// Time of issue, in milliseconds since 1970.
    pub(crate) issued_ms: u64,
    /// The operation's name, a colon, and that operation's cursor.
    pub(crate) state: String,
}

impl ListToken {
    pub(crate) fn to_text(&self) -> String {
        let mut out = vec![LIST];
        out.extend_from_slice(&self.issued_ms.to_be_bytes());
        out.extend_from_slice(self.state.as_bytes());
        seal(out)
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let bytes = open(text, LIST)?;
        let (fields, state) = bytes.split_at_checked(8)?;
        let [issued_ms] = numbers(fields);
        Some(Self { issued_ms, state: String::from_utf8(state.to_vec()).ok()? })
    }
}

fn numbers<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (numbers, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| numbers.get(i).map_or(0, |number| u64::from_be_bytes(*number)))
}

fn seal(mut bytes: Vec<u8>) -> String {
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    base64_simd::STANDARD.encode_to_string(bytes)
}

fn open(text: &str, kind: u8) -> Option<Vec<u8>> {
    let mut bytes = base64_simd::STANDARD.decode_to_vec(text).ok()?;
    let split = bytes.len().checked_sub(4)?;
    let sum = u32::from_be_bytes(bytes[split..].try_into().ok()?);
    bytes.truncate(split);
    (crc32fast::hash(&bytes) == sum && bytes.first() == Some(&kind)).then(|| bytes.split_off(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterators_come_back_whole_and_fit_the_apis_512_characters() {
        let iterator = ShardIterator {
            stream_id: u64::MAX,
            stream: "s".repeat(128),
            shard: u32::MAX,
            counter: u64::MAX,
            issued_ms: 1_700_000_000_000,
            epoch: 3,
            run: u64::MAX,
        };
        let text = iterator.to_text();
        assert!(text.len() <= 512);
        assert_eq!(ShardIterator::from_text(&text), Some(iterator));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let list = ListToken { issued_ms: 1, state: "x".into() }.to_text();
        assert_eq!(ListToken::from_text(&list).unwrap().state, "x");
        for text in ["", "garbage", "AAAA", "====", "ж", list.as_str()] {
            assert_eq!(ShardIterator::from_text(text), None, "{text}");
        }
        let mut flipped = list.into_bytes();
        flipped[3] ^= 1;
        assert_eq!(ListToken::from_text(std::str::from_utf8(&flipped).unwrap()), None);
    }
}
