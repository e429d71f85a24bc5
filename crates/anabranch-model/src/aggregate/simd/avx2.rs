//! MD5 of eight messages in the lanes of AVX2 registers.

use super::group::{group, rounds};
use super::rounds::steps;
use super::{Block, START, blocks_at, digest_of, full_blocks, last_blocks, pad, word_at};
use crate::aggregate::digest::{DIGEST_BYTES, Digest};
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_extract_epi32, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setr_epi64x, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

/// Number of messages side by side.
pub(in crate::aggregate) const LANES: usize = 8;

group!("avx2", __m256i);

/// Returns the words of the lanes' blocks: register `n` has word `n` of each lane.
#[target_feature(enable = "avx2")]
#[inline]
fn words_of(blocks: [&Block; LANES]) -> [__m256i; 16] {
    let mut words = [_mm256_set1_epi32(0); 16];
    for (half, words) in words.chunks_exact_mut(LANES).enumerate() {
        let mut rows = [splat(0); LANES];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = row_of(block, half);
        }
        words.copy_from_slice(&transposed(rows));
    }
    words
}

/// Returns half of a lane's block.
#[target_feature(enable = "avx2")]
#[inline]
fn row_of(block: &Block, half: usize) -> __m256i {
    let at = |part: usize| word_at(block, half * 4 + part);
    _mm256_setr_epi64x(at(0), at(1), at(2), at(3))
}

/// Transposes rows and columns.
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

rounds! {
    "avx2", __m256i,
    ff(b, c, d): xor(d, and(b, xor(c, d)));
    gg(b, c, d): xor(c, and(d, xor(b, c)));
    hh(b, c, d): xor(b, xor(c, d));
    ii(b, c, d): xor(c, _mm256_or_si256(b, xor(d, splat(u32::MAX))));
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

/// Returns the value of each lane.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::aggregate) fn lanes_of(register: __m256i) -> [u32; LANES] {
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
