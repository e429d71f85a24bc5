//! MD5, the digest of the aggregate format and of the hash key space.
//!
//! [`digest_many`] takes many messages at once. One MD5 uses only a fraction of a core's execution
//! units; several side by side use more.

use crate::hash::HashKey;
use md5::{Digest as _, Md5};

/// Size of a digest in bytes.
pub const DIGEST_BYTES: usize = 16;

/// An MD5 digest, in byte order of the output.
pub type Digest = [u8; DIGEST_BYTES];

/// Returns the digest of one message.
pub fn digest(message: &[u8]) -> Digest {
    Md5::digest(message).into()
}

/// Returns the digest of each message, in order. Computes eight or sixteen at a time if the
/// processor supports it.
pub fn digest_many(messages: &[&[u8]]) -> Vec<Digest> {
    #[cfg(target_arch = "x86_64")]
    if let Some(width) = super::simd::SimdWidth::widest() {
        return super::simd::digest_many(width, messages);
    }
    messages.iter().map(|message| digest(message)).collect()
}

/// Returns the hash key of each partition key, in order.
pub fn hash_keys(partition_keys: &[&[u8]]) -> Vec<HashKey> {
    digest_many(partition_keys).into_iter().map(|d| HashKey(u128::from_be_bytes(d))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_digest_is_md5() {
        for (message, want) in [
            ("", 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e_u128),
            ("abc", 0x9001_5098_3cd2_4fb0_d696_3f7d_28e1_7f72),
            ("message digest", 0xf96b_697d_7cb7_938d_525a_2f31_aaf1_61d0),
        ] {
            assert_eq!(digest(message.as_bytes()), want.to_be_bytes(), "{message:?}");
        }
    }

    proptest! {
        // Lengths around the 64-byte block, where a wider implementation could go wrong.
        #[test]
        fn many_at_once_are_each_as_one_alone(
            messages in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..200), 0..40),
        ) {
            let slices: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            let alone: Vec<Digest> = slices.iter().map(|m| digest(m)).collect();
            prop_assert_eq!(digest_many(&slices), alone);
        }

        #[test]
        fn hash_keys_are_where_the_service_places_the_keys(
            keys in proptest::collection::vec(".{0,80}", 0..20),
        ) {
            let slices: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            let each: Vec<HashKey> = keys.iter().map(|k| HashKey::of_partition_key(k)).collect();
            prop_assert_eq!(hash_keys(&slices), each);
        }
    }
}
