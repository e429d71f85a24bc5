//! Files are small, and none is named after the absence of a noun.

use super::sources::Source;
use std::path::Path;

const HARD_CAP_LINES: usize = 800;
const SOFT_CAP_LINES: usize = 500;
const MEDIAN_CAP_LINES: usize = 200;
const NO_NOUNS: [&str; 6] = ["types", "utils", "common", "core", "helpers", "misc"];

pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let mut problems = Vec::new();
    let mut sizes = Vec::new();
    for source in sources {
        let lines = source.text.lines().count();
        sizes.push(lines);
        if lines > HARD_CAP_LINES {
            problems
                .push(format!("{} has {lines} lines; the cap is {HARD_CAP_LINES}", source.path));
        } else if lines > SOFT_CAP_LINES {
            println!(
                "        note: {} has {lines} lines; better below {SOFT_CAP_LINES}",
                source.path
            );
        }
        let stem = Path::new(&source.path).file_stem().unwrap_or_default().to_string_lossy();
        if NO_NOUNS.contains(&stem.as_ref()) {
            problems.push(format!("{}: name it after the thing that it holds", source.path));
        }
    }
    sizes.sort_unstable();
    let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    if median > MEDIAN_CAP_LINES {
        problems.push(format!("the median file has {median} lines; at most {MEDIAN_CAP_LINES}"));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}
