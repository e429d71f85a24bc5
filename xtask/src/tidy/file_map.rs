//! ARCHITECTURE.md lists each source file once, and no file that isn't there.
//!
//! The map is the section "File map": a heading that names a folder, then a table whose first
//! column is a file of that folder.

use super::sources::Source;
use crate::shell::root;
use std::collections::BTreeMap;

const MAP: &str = "ARCHITECTURE.md";

pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let text = std::fs::read_to_string(root().join(MAP)).map_err(|e| format!("{MAP}: {e}"))?;
    let problems = compare(&listed(&text), sources.iter().map(|s| s.path.as_str()));
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// The files that the map lists, with how often.
fn listed(text: &str) -> BTreeMap<String, usize> {
    let mut files = BTreeMap::new();
    let (mut inside, mut folder) = (false, String::new());
    for line in text.lines() {
        if line.starts_with("## ") {
            inside = line == "## File map";
        } else if let Some(heading) = line.strip_prefix("### ") {
            in_backticks(heading).unwrap_or_default().clone_into(&mut folder);
        } else if let Some(file) = line.strip_prefix("| ").and_then(in_backticks)
            && inside
        {
            *files.entry(format!("{folder}/{file}")).or_default() += 1;
        }
    }
    files
}

/// The text between the first pair of backticks, if the line begins with it.
fn in_backticks(text: &str) -> Option<&str> {
    text.strip_prefix('`')?.split('`').next()
}

fn compare<'a>(
    listed: &BTreeMap<String, usize>,
    sources: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut ghosts = listed.clone();
    for path in sources {
        match ghosts.remove(path) {
            None => problems.push(format!("{path} is not in {MAP}")),
            Some(1) => {}
            Some(times) => problems.push(format!("{path} stands {times} times in {MAP}")),
        }
    }
    problems.extend(ghosts.keys().map(|path| format!("{MAP} lists {path}, which isn't there")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ghost_and_doubled_files_are_found() {
        let map = listed(
            "## File map\n### `a/src`\n| file | what |\n|---|---|\n| `x.rs` | x |\n\
             | `y.rs` | y |\n| `y.rs` | y |\n## Next\n| `z.rs` | outside |\n",
        );
        let problems = compare(&map, ["a/src/y.rs", "a/src/w.rs"].into_iter());
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(compare(&map, ["a/src/x.rs"].into_iter()).len() == 1);
    }
}
