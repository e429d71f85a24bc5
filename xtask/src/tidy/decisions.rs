//! Every decision of the consumer names tests, and each of these exists.

use super::sources::Source;
use crate::shell::root;
use std::collections::BTreeSet;
use std::fs;

const PAGE: &str = "docs/consumer.md";
const DECISIONS: u32 = 15;

pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let page = fs::read_to_string(root().join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let problems = problems(&page, &names_of_functions(sources));
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn problems(page: &str, functions: &BTreeSet<&str>) -> Vec<String> {
    let mut problems = Vec::new();
    for number in 1..=DECISIONS {
        let mut rows = page.lines().filter_map(|line| line.strip_prefix(&format!("| {number} |")));
        let Some(row) = rows.next() else {
            problems.push(format!("{PAGE} has no row for decision {number}"));
            continue;
        };
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let tests: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            problems.push(format!("{PAGE}: decision {number} names no test"));
        }
        let missing = tests.iter().filter(|test| !functions.contains(**test));
        problems.extend(missing.map(|test| format!("{PAGE}: decision {number}: no test {test}")));
    }
    problems
}

fn names_of_functions(sources: &[Source]) -> BTreeSet<&str> {
    let lines = sources.iter().flat_map(|source| source.text.lines());
    let names = lines.filter_map(|line| line.trim_start().split_once("fn "));
    names.filter_map(|(_, rest)| rest.split(['(', '<']).next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_without_a_test_and_a_test_that_is_gone_are_found() {
        let row = |number: u32, tests: &str| format!("| {number} | `text` | {tests} |\n");
        let good: String = (1..=DECISIONS).map(|number| row(number, "`held`, `kept`")).collect();
        let functions = BTreeSet::from(["held", "kept"]);
        assert_eq!(problems(&good, &functions), Vec::<String>::new());
        for (page, what) in [
            (good.replace("| 7 |", "| x |"), "no row for decision 7"),
            (good.replacen("`held`, `kept`", "none", 1), "decision 1 names no test"),
            (good.replacen("`kept`", "`gone`", 1), "decision 1: no test gone"),
        ] {
            let found = problems(&page, &functions).join("; ");
            assert!(found.contains(what), "{what}: {found}");
        }
    }
}
