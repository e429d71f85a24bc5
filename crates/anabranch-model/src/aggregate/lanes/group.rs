//! What the widths have in common: how a group of messages goes through the lanes, and the rounds.
//!
//! Macros, because a function for one feature of the processor can't be generic over it: each width
//! gets these with its own features and registers, as if they were written there.

/// The digests of a group of messages, in a module that has `LANES`, `splat`, `add`, `words_of`,
/// `lanes_of` and the rounds.
macro_rules! group {
    ($features:literal, $register:ty) => {
        /// The digests of as many messages as there are lanes, or fewer.
        #[target_feature(enable = $features)]
        pub(super) fn digest_group(group: &[&[u8]]) -> [Digest; LANES] {
            let mut digests = [[0; DIGEST_BYTES]; LANES];
            let mut padding = [[0; BLOCK_BYTES]; LANES];
            let lasts: [usize; LANES] = std::array::from_fn(|lane| {
                group.get(lane).map_or(0, |message| last_block(message))
            });
            let blocks = lasts.iter().max().map_or(0, |last| last + 1);
            let mut state = START.map(|word| splat(word));
            for block in 0..blocks {
                for ((message, padding), last) in group.iter().zip(&mut padding).zip(&lasts) {
                    pad(message, block, *last, padding);
                }
                // A lane whose message is over goes on with what is there; its digest has been taken.
                let of_lane =
                    |lane: usize| group.get(lane).and_then(|message| whole_block(message, block));
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
        #[target_feature(enable = $features)]
        pub(super) fn compress(before: [$register; 4], blocks: [&Block; LANES]) -> [$register; 4] {
            let words = words_of(blocks);
            let [mut a, mut b, mut c, mut d] = before;
            steps!(words, a, b, c, d);
            let [a0, b0, c0, d0] = before;
            [add(a0, a), add(b0, b), add(c0, c), add(d0, d)]
        }
    };
}

/// The four rounds: how each mixes `b`, `c` and `d`. The module has `step`.
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

pub(super) use {group, rounds};
