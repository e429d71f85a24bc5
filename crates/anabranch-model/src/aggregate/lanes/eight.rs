//! MD5 of eight messages in the lanes of AVX2's registers.

use super::super::digest::{DIGEST_BYTES, Digest};
use super::steps::steps;
use super::{BLOCK_BYTES, Block, START, digest_of, last_block, pad, whole_block, word_at};
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_extract_epi32, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setr_epi64x, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

/// Messages side by side.
pub(super) const LANES: usize = 8;

/// The digests of up to eight messages.
#[target_feature(enable = "avx2")]
pub(super) fn digest_group(group: &[&[u8]]) -> [Digest; LANES] {
    let mut digests = [[0; DIGEST_BYTES]; LANES];
    let mut padding = [[0; BLOCK_BYTES]; LANES];
    let lasts: [usize; LANES] =
        std::array::from_fn(|lane| group.get(lane).map_or(0, |message| last_block(message)));
    let blocks = lasts.iter().max().map_or(0, |last| last + 1);
    let mut state = START.map(|word| splat(word));
    for block in 0..blocks {
        for ((message, padding), last) in group.iter().zip(&mut padding).zip(&lasts) {
            pad(message, block, *last, padding);
        }
        // A lane whose message is over goes on with what is there; its digest has been taken.
        let of_lane = |lane: usize| group.get(lane).and_then(|message| whole_block(message, block));
        let all = std::array::from_fn(|lane| of_lane(lane).unwrap_or(&padding[lane]));
        state = compress(state, all);
        if lasts.contains(&block) {
            let parts = state.map(|part| lanes_of(part));
            for (lane, last) in lasts.iter().enumerate() {
                if *last == block {
                    digests[lane] = digest_of(parts.map(|part| part[lane]));
                }
            }
        }
    }
    digests
}

/// One block of each lane.
#[target_feature(enable = "avx2")]
pub(super) fn compress(before: [__m256i; 4], blocks: [&Block; LANES]) -> [__m256i; 4] {
    let words = words_of(blocks);
    let [mut a, mut b, mut c, mut d] = before;
    steps!(words, a, b, c, d);
    let [a0, b0, c0, d0] = before;
    [add(a0, a), add(b0, b), add(c0, c), add(d0, d)]
}

/// The words of the lanes' blocks: register `n` has word `n` of each lane.
#[target_feature(enable = "avx2")]
#[inline]
fn words_of(blocks: [&Block; LANES]) -> [__m256i; 16] {
    let mut words = [_mm256_set1_epi32(0); 16];
    for (half, words) in words.chunks_exact_mut(LANES).enumerate() {
        words.copy_from_slice(&transposed(blocks.map(|block| row(block, half))));
    }
    words
}

/// Half of a lane's block.
#[target_feature(enable = "avx2")]
#[inline]
fn row(block: &Block, half: usize) -> __m256i {
    let at = |part: usize| word_at(block, half * 4 + part);
    _mm256_setr_epi64x(at(0), at(1), at(2), at(3))
}

/// Rows become columns.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed(rows: [__m256i; LANES]) -> [__m256i; LANES] {
    let pairs = |at: usize| {
        let (one, other) = (rows[at], rows[at + 1]);
        [_mm256_unpacklo_epi32(one, other), _mm256_unpackhi_epi32(one, other)]
    };
    let fours = |at: usize| {
        let ([low, high], [low_next, high_next]) = (pairs(at), pairs(at + 2));
        [
            _mm256_unpacklo_epi64(low, low_next),
            _mm256_unpackhi_epi64(low, low_next),
            _mm256_unpacklo_epi64(high, high_next),
            _mm256_unpackhi_epi64(high, high_next),
        ]
    };
    let (upper, lower) = (fours(0), fours(4));
    let first = |at: usize| _mm256_permute2x128_si256::<0x20>(upper[at], lower[at]);
    let second = |at: usize| _mm256_permute2x128_si256::<0x31>(upper[at], lower[at]);
    [first(0), first(1), first(2), first(3), second(0), second(1), second(2), second(3)]
}

#[target_feature(enable = "avx2")]
#[inline]
fn ff<const L: i32, const R: i32>(
    a: __m256i,
    b: __m256i,
    c: __m256i,
    d: __m256i,
    word: __m256i,
    addend: u32,
) -> __m256i {
    step::<L, R>(a, b, xor(d, and(b, xor(c, d))), word, addend)
}

#[target_feature(enable = "avx2")]
#[inline]
fn gg<const L: i32, const R: i32>(
    a: __m256i,
    b: __m256i,
    c: __m256i,
    d: __m256i,
    word: __m256i,
    addend: u32,
) -> __m256i {
    step::<L, R>(a, b, xor(c, and(d, xor(b, c))), word, addend)
}

#[target_feature(enable = "avx2")]
#[inline]
fn hh<const L: i32, const R: i32>(
    a: __m256i,
    b: __m256i,
    c: __m256i,
    d: __m256i,
    word: __m256i,
    addend: u32,
) -> __m256i {
    step::<L, R>(a, b, xor(b, xor(c, d)), word, addend)
}

#[target_feature(enable = "avx2")]
#[inline]
fn ii<const L: i32, const R: i32>(
    a: __m256i,
    b: __m256i,
    c: __m256i,
    d: __m256i,
    word: __m256i,
    addend: u32,
) -> __m256i {
    step::<L, R>(a, b, xor(c, _mm256_or_si256(b, xor(d, splat(u32::MAX)))), word, addend)
}

#[target_feature(enable = "avx2")]
#[inline]
fn step<const L: i32, const R: i32>(
    a: __m256i,
    b: __m256i,
    mixed: __m256i,
    word: __m256i,
    addend: u32,
) -> __m256i {
    let sum = add(mixed, add(a, add(word, splat(addend))));
    add(b, _mm256_or_si256(_mm256_slli_epi32::<L>(sum), _mm256_srli_epi32::<R>(sum)))
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

/// What stands in each lane.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn lanes_of(register: __m256i) -> [u32; LANES] {
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
