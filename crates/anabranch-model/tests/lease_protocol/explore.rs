//! Breadth-first search of all reachable states, each visited once.

use crate::choices::{GOALS, Moves, Scope, Step};
use crate::flaw::Flaw;
use crate::world::World;
use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Result of a search.
pub(crate) struct Report {
    pub(crate) states: usize,
    /// Shortest path to a violation, if there is one.
    pub(crate) violation: Option<String>,
    /// Goals that were reached, to detect a search that explores too little.
    pub(crate) goals: [bool; GOALS.len()],
}

/// Explores every interleaving in `scope`.
pub(crate) fn explore(scope: &Scope, flaw: Flaw) -> Report {
    let moves = Moves::new(scope, flaw);
    let start = World::start(scope.owned);
    let mut known: HashSet<u64, BuildHasherDefault<Ready>> = HashSet::default();
    // For each state, the index of its predecessor and the number of the step.
    let mut trail: Vec<(u32, u16)> = vec![(0, 0)];
    let mut layer = vec![(0_u32, start)];
    known.insert(fingerprint(&start));
    let mut goals = [false; GOALS.len()];
    let mut steps = Vec::new();
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (index, world) in layer {
            if let Err(promise) = moves.check(&world) {
                let violation = Some(retell(&moves, start, &trail, index, &promise));
                return Report { states: trail.len(), violation, goals };
            }
            let reached = moves.goals(&world);
            goals.iter_mut().zip(reached).for_each(|(goal, now)| *goal |= now);
            steps.clear();
            moves.from(&world, &mut steps);
            for (number, step) in steps.iter().enumerate() {
                let after = match moves.take(world, *step) {
                    Ok(after) => after,
                    Err(promise) => {
                        let mut violation = retell(&moves, start, &trail, index, &promise);
                        let _ = writeln!(violation, "  at the step {step:?}");
                        return Report { states: trail.len(), violation: Some(violation), goals };
                    }
                };
                if known.insert(fingerprint(&after)) {
                    next.push((u32::try_from(trail.len()).expect("they fit into memory"), after));
                    trail.push((index, u16::try_from(number).expect("steps are few")));
                }
            }
        }
        layer = next;
    }
    Report { states: trail.len(), violation: None, goals }
}

/// Formats the steps that led to a state.
fn retell(
    moves: &Moves<'_>,
    start: World,
    trail: &[(u32, u16)],
    mut index: u32,
    promise: &str,
) -> String {
    let mut numbers = Vec::new();
    while index != 0 {
        let (from, number) = trail[index as usize];
        numbers.push(number);
        index = from;
    }
    let mut story = format!("{promise}\n");
    let mut world = start;
    for number in numbers.into_iter().rev() {
        let mut steps: Vec<Step> = Vec::new();
        moves.from(&world, &mut steps);
        let step = steps[number as usize];
        let _ = writeln!(story, "  t={} {step:?}", world.tick);
        world = moves.take(world, step).expect("this way was gone before");
    }
    story
}

/// Returns 64 bits that represent a state. Among ten million states the probability of a collision
/// is one in 300,000.
fn fingerprint(world: &World) -> u64 {
    let mut hasher = Mix::default();
    world.hash(&mut hasher);
    hasher.finish()
}

/// A fast hash: the states are small and not attacker-controlled.
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n.unsigned_abs() as u64);
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 29)
    }
}

/// A hasher for fingerprints, which are hashes already.
#[derive(Default)]
struct Ready(u64);

impl Hasher for Ready {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are kept");
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
