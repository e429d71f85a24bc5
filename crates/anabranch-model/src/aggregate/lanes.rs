//! MD5 of eight messages side by side, where the processor has AVX2.
//!
//! One MD5 is a chain of 64 dependent steps for each block, so a core stands idle for most of it.
//! Eight chains in the eight lanes of a register take the time of one.

#![expect(unsafe_code, reason = "a function for AVX2 is called after AVX2 was found")]

use super::digest::{DIGEST_BYTES, Digest, digest};
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_extract_epi32, _mm256_or_si256,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_sllv_epi32, _mm256_srlv_epi32, _mm256_xor_si256,
};

/// Messages side by side.
const LANES: usize = 8;
const BLOCK_BYTES: usize = 64;
/// Bytes at the end of the last block that hold the message's length.
const LENGTH_BYTES: usize = 8;

/// The state before the first block.
const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// How far each step rotates, by its place among four in each of the four rounds.
const ROTATIONS: [[u32; 4]; 4] =
    [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// What each step adds.
const ADDENDS: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// The digest of each message, in their order. `None` if the processor has no AVX2.
pub(super) fn digest_many(messages: &[&[u8]]) -> Option<Vec<Digest>> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    let mut digests = Vec::with_capacity(messages.len());
    for group in messages.chunks(LANES) {
        match group {
            // Few lanes cost as much as eight.
            [] => {}
            [one] => digests.push(digest(one)),
            [one, other] => digests.extend([digest(one), digest(other)]),
            group => {
                // SAFETY: the processor has AVX2, as was found above.
                let eight = unsafe { digest_group(group) };
                digests.extend_from_slice(&eight[..group.len()]);
            }
        }
    }
    Some(digests)
}

/// The digests of up to eight messages.
#[target_feature(enable = "avx2")]
fn digest_group(group: &[&[u8]]) -> [Digest; LANES] {
    let mut digests = [[0; DIGEST_BYTES]; LANES];
    let lasts: [usize; LANES] =
        std::array::from_fn(|lane| group.get(lane).map_or(0, |message| last_block(message)));
    let blocks = lasts.iter().max().map_or(0, |last| last + 1);
    let [a, b, c, d] = START;
    let mut state = [splat(a), splat(b), splat(c), splat(d)];
    for block in 0..blocks {
        // A lane whose message is over goes on with zeros; its digest has been taken.
        let words: [[u32; 16]; LANES] = std::array::from_fn(|lane| {
            group.get(lane).map_or([0; 16], |message| block_words(message, block))
        });
        state = compress(state, &words);
        if lasts.contains(&block) {
            let [a, b, c, d] = state;
            let lanes = [lanes_of(a), lanes_of(b), lanes_of(c), lanes_of(d)];
            for (lane, last) in lasts.iter().enumerate() {
                if *last == block {
                    for (part, bytes) in digests[lane].chunks_exact_mut(4).enumerate() {
                        bytes.copy_from_slice(&lanes[part][lane].to_le_bytes());
                    }
                }
            }
        }
    }
    digests
}

/// The place of a message's last block, which ends with its length.
fn last_block(message: &[u8]) -> usize {
    (message.len() + LENGTH_BYTES) / BLOCK_BYTES
}

/// A block of a message, padding and length included.
fn block_words(message: &[u8], block: usize) -> [u32; 16] {
    let at = block * BLOCK_BYTES;
    if let Some(whole) = message.get(at..at + BLOCK_BYTES) {
        return words_of(whole);
    }
    let mut padded = [0; BLOCK_BYTES];
    let rest = message.get(at..).unwrap_or_default();
    padded[..rest.len()].copy_from_slice(rest);
    if at <= message.len() {
        padded[rest.len()] = 0x80;
    }
    if block == last_block(message) {
        let bits = (message.len() as u64).wrapping_mul(8);
        padded[BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&bits.to_le_bytes());
    }
    words_of(&padded)
}

fn words_of(block: &[u8]) -> [u32; 16] {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().expect("a chunk has four bytes"));
    }
    words
}

/// One block of each lane.
#[target_feature(enable = "avx2")]
#[inline]
fn compress(before: [__m256i; 4], words: &[[u32; 16]; LANES]) -> [__m256i; 4] {
    let ones = _mm256_set1_epi32(-1);
    let mut message = [ones; 16];
    for (word, register) in message.iter_mut().enumerate() {
        let at = |lane: usize| words[lane][word].cast_signed();
        *register = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    }
    let [mut a, mut b, mut c, mut d] = before;
    for step in 0..64 {
        let round = step / 16;
        let (mixed, word) = match round {
            0 => (xor(d, and(b, xor(c, d))), step),
            1 => (xor(c, and(d, xor(b, c))), 5 * step + 1),
            2 => (xor(b, xor(c, d)), 3 * step + 5),
            _ => (xor(c, _mm256_or_si256(b, xor(d, ones))), 7 * step),
        };
        let sum = add(add(mixed, a), add(splat(ADDENDS[step]), message[word % 16]));
        let by = ROTATIONS[round][step % 4];
        let left = _mm256_sllv_epi32(sum, splat(by));
        let right = _mm256_srlv_epi32(sum, splat(32 - by));
        (a, d, c) = (d, c, b);
        b = add(b, _mm256_or_si256(left, right));
    }
    let [a0, b0, c0, d0] = before;
    [add(a0, a), add(b0, b), add(c0, c), add(d0, d)]
}

#[target_feature(enable = "avx2")]
#[inline]
fn splat(value: u32) -> __m256i {
    _mm256_set1_epi32(value.cast_signed())
}

#[target_feature(enable = "avx2")]
#[inline]
fn add(one: __m256i, other: __m256i) -> __m256i {
    _mm256_add_epi32(one, other)
}

#[target_feature(enable = "avx2")]
#[inline]
fn and(one: __m256i, other: __m256i) -> __m256i {
    _mm256_and_si256(one, other)
}

#[target_feature(enable = "avx2")]
#[inline]
fn xor(one: __m256i, other: __m256i) -> __m256i {
    _mm256_xor_si256(one, other)
}

#[target_feature(enable = "avx2")]
#[inline]
fn lanes_of(register: __m256i) -> [u32; LANES] {
    [
        _mm256_extract_epi32::<0>(register),
        _mm256_extract_epi32::<1>(register),
        _mm256_extract_epi32::<2>(register),
        _mm256_extract_epi32::<3>(register),
        _mm256_extract_epi32::<4>(register),
        _mm256_extract_epi32::<5>(register),
        _mm256_extract_epi32::<6>(register),
        _mm256_extract_epi32::<7>(register),
    ]
    .map(i32::cast_unsigned)
}
