//! Tests that a document names are there.

use super::sources::Source;
use crate::shell::root;
use std::collections::HashSet;
use std::fs;

/// The documents that name tests in backticks.
const DOCUMENTS: [&str; 1] = ["docs/kpl.md"];

pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let tests: HashSet<&str> = sources.iter().flat_map(|source| functions(&source.text)).collect();
    let mut problems = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document));
        let text = text.map_err(|error| format!("{document}: {error}"))?;
        let named = text.lines().filter(|line| line.starts_with('|')).flat_map(in_backticks);
        let missing = named.filter(|name| !tests.contains(name));
        problems.extend(missing.map(|name| format!("{document}: there is no test {name}")));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// The names of all functions in a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let behind = |line: &'_ str| line.find("fn ").map(|at| at + 3);
    text.lines().filter_map(move |line| {
        let rest = &line[behind(line)?..];
        Some(&rest[..rest.find(['(', '<'])?])
    })
}

fn in_backticks(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_sources_and_documents() {
        let source = "    async fn one(x: u8) {}\npub(crate) fn two<T>() {}\nlet fnord = 1;";
        assert_eq!(functions(source).collect::<Vec<_>>(), ["one", "two"]);
        let names: Vec<_> = in_backticks("| a | `one`, `two` |").collect();
        assert_eq!(names, ["one", "two"]);
    }
}
