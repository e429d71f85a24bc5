//! Code shared by all SIMD widths: processing of a group of messages, and the MD5 rounds.
//!
//! These are macros because a function for a processor feature cannot be generic over it. Each
//! width gets a copy with its own features and registers.
//!
//! The code uses loops instead of closures with iterators and arrays. Those functions lack the
//! feature, so a closure that has it would be called for each lane, through memory.

/// Defines the digest functions for a group of messages, in a module with `LANES`, `splat`, `add`,
/// `words_of`, `lanes_of` and the rounds.
macro_rules! group {
    ($features:literal, $register:ty) => {
        /// Returns the digests of up to `LANES` messages. `padding` is scratch memory for blocks
        /// that are not full; its content is ignored.
        #[target_feature(enable = $features)]
        pub(in crate::aggregate) fn digest_group(
            group: &[&[u8]],
            padding: &mut [Block; LANES],
        ) -> [Digest; LANES] {
            let mut digests = [[0; DIGEST_BYTES]; LANES];
            let lasts: [usize; LANES] = last_blocks(group);
            let blocks = lasts.iter().max().map_or(0, |last| last + 1);
            let mut state = [splat(START[0]), splat(START[1]), splat(START[2]), splat(START[3])];
            // Most blocks of messages of similar length are full in every lane.
            let full = full_blocks(group);
            for block in 0..full {
                state = compress(state, blocks_at(group, block, padding));
            }
            for block in full..blocks {
                for ((message, padding), last) in group.iter().zip(&mut *padding).zip(&lasts) {
                    pad(message, block, *last, padding);
                }
                // A lane whose message has ended continues with arbitrary data; its digest is
                // already taken.
                state = compress(state, blocks_at(group, block, padding));
                if lasts.contains(&block) {
                    let [a, b, c, d] = state;
                    let (a, b, c, d) = (lanes_of(a), lanes_of(b), lanes_of(c), lanes_of(d));
                    for (lane, last) in lasts.iter().enumerate() {
                        if *last == block {
                            digests[lane] = digest_of([a[lane], b[lane], c[lane], d[lane]]);
                        }
                    }
                }
            }
            digests
        }

        /// Compresses one block of each lane.
        #[target_feature(enable = $features)]
        pub(in crate::aggregate) fn compress(
            before: [$register; 4],
            blocks: [&Block; LANES],
        ) -> [$register; 4] {
            let words = words_of(blocks);
            let [mut a, mut b, mut c, mut d] = before;
            steps!(words, a, b, c, d);
            let [a0, b0, c0, d0] = before;
            [add(a0, a), add(b0, b), add(c0, c), add(d0, d)]
        }
    };
}

/// Defines the four round functions by how each mixes `b`, `c` and `d`. The module must have
/// `step`.
macro_rules! rounds {
    ($features:literal, $register:ty, $($name:ident($b:ident, $c:ident, $d:ident): $mixed:expr;)*) => {$(
        #[target_feature(enable = $features)]
        #[inline]
        fn $name<const L: i32, const R: i32>(
            a: $register,
            $b: $register,
            $c: $register,
            $d: $register,
            word: $register,
            addend: u32,
        ) -> $register {
            step::<L, R>(a, $b, $mixed, word, addend)
        }
    )*};
}

pub(in crate::aggregate) use {group, rounds};
