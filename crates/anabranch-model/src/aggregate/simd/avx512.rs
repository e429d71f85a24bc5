//! MD5 of sixteen messages in the lanes of AVX-512 registers.

use super::avx2;
use super::group::{group, rounds};
use super::rounds::steps;
use super::{Block, START, blocks_at, digest_of, full_blocks, last_blocks, pad, word_at};
use crate::aggregate::digest::{DIGEST_BYTES, Digest};
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_castsi512_si256, _mm512_extracti64x4_epi64, _mm512_rol_epi32,
    _mm512_set1_epi32, _mm512_setr_epi64, _mm512_shuffle_i32x4, _mm512_ternarylogic_epi32,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Number of messages side by side.
pub(in crate::aggregate) const LANES: usize = 16;

group!("avx512f,avx2", __m512i);

/// Returns the words of the lanes' blocks: register `n` has word `n` of each lane.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn words_of(blocks: [&Block; LANES]) -> [__m512i; 16] {
    let mut rows = [splat(0); LANES];
    for (row, block) in rows.iter_mut().zip(blocks) {
        *row = row_of(block);
    }
    let fours = [fours(&rows, 0), fours(&rows, 4), fours(&rows, 8), fours(&rows, 12)];
    let mut words = [splat(0); 16];
    for place in 0..4 {
        // Each quarter of a register has word `place` of a group of four words, for four rows.
        let [a, b, c, d] = [fours[0][place], fours[1][place], fours[2][place], fours[3][place]];
        let even = |one, other| _mm512_shuffle_i32x4::<0x88>(one, other);
        let odd = |one, other| _mm512_shuffle_i32x4::<0xdd>(one, other);
        words[place] = even(even(a, b), even(c, d));
        words[4 + place] = even(odd(a, b), odd(c, d));
        words[8 + place] = odd(even(a, b), even(c, d));
        words[12 + place] = odd(odd(a, b), odd(c, d));
    }
    words
}

/// Returns a lane's block.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn row_of(block: &Block) -> __m512i {
    let at = |part: usize| word_at(block, part);
    _mm512_setr_epi64(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
}

/// Transposes four rows from `at` on within each quarter of the register.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn fours(rows: &[__m512i; LANES], at: usize) -> [__m512i; 4] {
    let low = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
    let high = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
    let low_next = _mm512_unpacklo_epi32(rows[at + 2], rows[at + 3]);
    let high_next = _mm512_unpackhi_epi32(rows[at + 2], rows[at + 3]);
    [
        _mm512_unpacklo_epi64(low, low_next),
        _mm512_unpackhi_epi64(low, low_next),
        _mm512_unpacklo_epi64(high, high_next),
        _mm512_unpackhi_epi64(high, high_next),
    ]
}

rounds! {
    "avx512f,avx2", __m512i,
    ff(b, c, d): _mm512_ternarylogic_epi32::<0xca>(b, c, d);
    gg(b, c, d): _mm512_ternarylogic_epi32::<0xca>(d, b, c);
    hh(b, c, d): _mm512_ternarylogic_epi32::<0x96>(b, c, d);
    ii(b, c, d): _mm512_ternarylogic_epi32::<0x39>(b, c, d);
}

/// Computes one step. AVX-512 has a rotate instruction, so `R` is not used.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn step<const L: i32, const R: i32>(
    a: __m512i,
    b: __m512i,
    mixed: __m512i,
    word: __m512i,
    addend: u32,
) -> __m512i {
    let sum = add(mixed, add(a, add(word, splat(addend))));
    add(b, _mm512_rol_epi32::<L>(sum))
}

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn splat(value: u32) -> __m512i {
    _mm512_set1_epi32(value.cast_signed())
}

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn add(one: __m512i, other: __m512i) -> __m512i {
    _mm512_add_epi32(one, other)
}

/// Returns the value of each lane.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn lanes_of(register: __m512i) -> [u32; LANES] {
    let low = avx2::lanes_of(_mm512_castsi512_si256(register));
    let high = avx2::lanes_of(_mm512_extracti64x4_epi64::<1>(register));
    let mut lanes = [0; LANES];
    lanes[..avx2::LANES].copy_from_slice(&low);
    lanes[avx2::LANES..].copy_from_slice(&high);
    lanes
}
