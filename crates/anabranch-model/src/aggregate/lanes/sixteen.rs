//! MD5 of sixteen messages in the lanes of AVX-512's registers.

use super::super::digest::{DIGEST_BYTES, Digest};
use super::eight;
use super::steps::steps;
use super::{BLOCK_BYTES, Block, START, digest_of, last_block, pad, whole_block, word_at};
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_castsi512_si256, _mm512_extracti64x4_epi64, _mm512_rol_epi32,
    _mm512_set1_epi32, _mm512_setr_epi64, _mm512_shuffle_i32x4, _mm512_ternarylogic_epi32,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Messages side by side.
pub(super) const LANES: usize = 16;

/// The digests of up to sixteen messages.
#[target_feature(enable = "avx512f,avx2")]
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
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn compress(before: [__m512i; 4], blocks: [&Block; LANES]) -> [__m512i; 4] {
    let words = words_of(blocks);
    let [mut a, mut b, mut c, mut d] = before;
    steps!(words, a, b, c, d);
    let [a0, b0, c0, d0] = before;
    [add(a0, a), add(b0, b), add(c0, c), add(d0, d)]
}

/// The words of the lanes' blocks: register `n` has word `n` of each lane.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn words_of(blocks: [&Block; LANES]) -> [__m512i; 16] {
    let rows = blocks.map(|block| row(block));
    let fours = [fours(&rows, 0), fours(&rows, 4), fours(&rows, 8), fours(&rows, 12)];
    let mut words = [splat(0); 16];
    for place in 0..4 {
        // Each register of four rows has, in its quarters, word `place` of each four words.
        let [a, b, c, d] = [0, 1, 2, 3].map(|four: usize| fours[four][place]);
        let even = |one, other| _mm512_shuffle_i32x4::<0x88>(one, other);
        let odd = |one, other| _mm512_shuffle_i32x4::<0xdd>(one, other);
        words[place] = even(even(a, b), even(c, d));
        words[4 + place] = even(odd(a, b), odd(c, d));
        words[8 + place] = odd(even(a, b), even(c, d));
        words[12 + place] = odd(odd(a, b), odd(c, d));
    }
    words
}

/// A lane's block.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn row(block: &Block) -> __m512i {
    let at = |part: usize| word_at(block, part);
    _mm512_setr_epi64(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
}

/// Four rows from `at` on, turned within each quarter of the register.
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

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn ff<const L: i32, const R: i32>(
    a: __m512i,
    b: __m512i,
    c: __m512i,
    d: __m512i,
    word: __m512i,
    addend: u32,
) -> __m512i {
    step::<L, R>(a, b, _mm512_ternarylogic_epi32::<0xca>(b, c, d), word, addend)
}

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn gg<const L: i32, const R: i32>(
    a: __m512i,
    b: __m512i,
    c: __m512i,
    d: __m512i,
    word: __m512i,
    addend: u32,
) -> __m512i {
    step::<L, R>(a, b, _mm512_ternarylogic_epi32::<0xca>(d, b, c), word, addend)
}

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn hh<const L: i32, const R: i32>(
    a: __m512i,
    b: __m512i,
    c: __m512i,
    d: __m512i,
    word: __m512i,
    addend: u32,
) -> __m512i {
    step::<L, R>(a, b, _mm512_ternarylogic_epi32::<0x96>(b, c, d), word, addend)
}

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn ii<const L: i32, const R: i32>(
    a: __m512i,
    b: __m512i,
    c: __m512i,
    d: __m512i,
    word: __m512i,
    addend: u32,
) -> __m512i {
    step::<L, R>(a, b, _mm512_ternarylogic_epi32::<0x39>(b, c, d), word, addend)
}

/// AVX-512 rotates by itself, so it needs no second number.
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

/// What stands in each lane.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn lanes_of(register: __m512i) -> [u32; LANES] {
    let low = eight::lanes_of(_mm512_castsi512_si256(register));
    let high = eight::lanes_of(_mm512_extracti64x4_epi64::<1>(register));
    let mut lanes = [0; LANES];
    lanes[..eight::LANES].copy_from_slice(&low);
    lanes[eight::LANES..].copy_from_slice(&high);
    lanes
}
