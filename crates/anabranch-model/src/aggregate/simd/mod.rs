//! MD5 of many messages side by side: eight with AVX2, sixteen with AVX-512.
//!
//! One MD5 is a chain of 64 dependent steps per block, so a core is idle for most of it. As many
//! chains as a register has lanes take the time of one.

#![expect(unsafe_code, reason = "a function for a processor's feature is called once it was found")]

mod rounds;
mod group;
mod avx2;
mod avx512;

use super::digest::{DIGEST_BYTES, Digest, digest};

const BLOCK_BYTES: usize = 64;
/// Bytes at the end of the last block that hold the message's length.
const LENGTH_BYTES: usize = 8;

/// State before the first block.
const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// A block of a message.
type Block = [u8; BLOCK_BYTES];

/// Number of messages that the processor digests side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SimdWidth {
    /// With AVX2.
    Eight,
    /// With AVX-512.
    Sixteen,
}

impl SimdWidth {
    /// Returns the widest that the processor supports, if any.
    pub(super) fn widest() -> Option<Self> {
        if !is_x86_feature_detected!("avx2") {
            None
        } else if is_x86_feature_detected!("avx512f") {
            Some(Self::Sixteen)
        } else {
            Some(Self::Eight)
        }
    }
}

/// Returns the digest of each message, in order. The processor must support the width, which
/// [`SimdWidth::widest`] returns; narrower ones are then supported too.
pub(super) fn digest_many(width: SimdWidth, messages: &[&[u8]]) -> Vec<Digest> {
    let mut digests = Vec::with_capacity(messages.len());
    let mut padding = [[0; BLOCK_BYTES]; avx512::LANES];
    let lanes = if width == SimdWidth::Sixteen { avx512::LANES } else { avx2::LANES };
    for group in messages.chunks(lanes) {
        match (group, width) {
            // A group with few messages costs as much as a full one.
            ([] | [_], _) | ([_, _], SimdWidth::Eight) => {
                digests.extend(group.iter().map(|message| digest(message)));
            }
            (group, SimdWidth::Sixteen) => {
                // SAFETY: AVX-512 and AVX2 were detected before this width was chosen.
                let sixteen = unsafe { avx512::digest_group(group, &mut padding) };
                digests.extend_from_slice(&sixteen[..group.len()]);
            }
            (group, SimdWidth::Eight) => {
                let padding = padding.first_chunk_mut().expect("eight is less than sixteen");
                // SAFETY: AVX2 was detected before this width was chosen.
                let eight = unsafe { avx2::digest_group(group, padding) };
                digests.extend_from_slice(&eight[..group.len()]);
            }
        }
    }
    digests
}

/// Returns the index of each message's last block, which ends with its length.
fn last_blocks<const LANES: usize>(group: &[&[u8]]) -> [usize; LANES] {
    let last = |message: &&[u8]| (message.len() + LENGTH_BYTES) / BLOCK_BYTES;
    std::array::from_fn(|lane| group.get(lane).map_or(0, last))
}

/// Returns the number of blocks that are full in every message.
fn full_blocks(group: &[&[u8]]) -> usize {
    group.iter().map(|message| message.len() / BLOCK_BYTES).min().unwrap_or(0)
}

/// Returns a block of each message, or its padding block if the message does not fill it.
#[inline]
fn blocks_at<'a, const LANES: usize>(
    group: &[&'a [u8]],
    block: usize,
    padding: &'a [Block; LANES],
) -> [&'a Block; LANES] {
    let whole = |message: &&'a [u8]| message.get(block * BLOCK_BYTES..)?.first_chunk();
    std::array::from_fn(|lane| group.get(lane).and_then(whole).unwrap_or(&padding[lane]))
}

/// Fills a partial block with the rest of its message, the padding and the length.
fn pad(message: &[u8], block: usize, last: usize, padded: &mut Block) {
    let at = block * BLOCK_BYTES;
    if block > last || at + BLOCK_BYTES <= message.len() {
        return;
    }
    *padded = [0; BLOCK_BYTES];
    let rest = message.get(at..).unwrap_or_default();
    padded[..rest.len()].copy_from_slice(rest);
    if at <= message.len() {
        padded[rest.len()] = 0x80;
    }
    if block == last {
        let bits = (message.len() as u64).wrapping_mul(8);
        padded[BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&bits.to_le_bytes());
    }
}

/// Returns the eight bytes at index `place` of a block, in register byte order.
fn word_at(block: &Block, place: usize) -> i64 {
    let bytes = block[place * 8..].first_chunk().expect("a block has eight times eight bytes");
    i64::from_le_bytes(*bytes)
}

/// Returns the digest of a state.
fn digest_of(parts: [u32; 4]) -> Digest {
    let mut digest = [0; DIGEST_BYTES];
    for (bytes, part) in digest.chunks_exact_mut(4).zip(parts) {
        bytes.copy_from_slice(&part.to_le_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_gives_the_digest_of_each_message_alone() {
        // Around the block size, where padding spills into the next block, and lengths far apart.
        let lengths = [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1_000, 70_000];
        let byte = |at: usize| u8::try_from(at % 251).unwrap();
        let fill = |length: usize| (0..length).map(|at| byte(at * 7 + length)).collect();
        let messages: Vec<Vec<u8>> = (0..40).map(|at| fill(lengths[at * 5 % 16])).collect();
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let Some(widest) = SimdWidth::widest() else { return };
        for width in [SimdWidth::Eight, widest] {
            for count in 0..messages.len() {
                let group = &messages[..count];
                let alone: Vec<Digest> = group.iter().map(|message| digest(message)).collect();
                assert_eq!(digest_many(width, group), alone, "{count} messages, {width:?}");
            }
        }
    }
}
