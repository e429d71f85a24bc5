//! Type names are defined once per crate.

use super::sources::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Names that a crate may define more than once. In `anabranch-local` each operation has its own
/// `Request` and `Reply`.
const ALLOWED: [&str; 2] = ["Reply", "Request"];
const _: () = assert!(ALLOWED.len() <= 10, "rename a type instead");

pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let problems = problems(sources, &ALLOWED);
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn problems(sources: &[Source], allowed: &[&str]) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some((package, _)) = source.path.split_once("/src/") else { continue };
        for (number, line) in source.product_lines() {
            if let Some(name) = type_name(line) {
                let place = format!("{}:{number}", source.path);
                places.entry((package, name)).or_default().push(place);
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    let repeated: BTreeSet<&str> = places.keys().map(|(_, name)| *name).collect();
    let unused = allowed.iter().filter(|name| !repeated.contains(**name));
    let unused = unused.map(|name| format!("{name} is defined once now: take it off ALLOWED"));
    let repeats = places.iter().filter(|((_, name), _)| !allowed.contains(name));
    let repeats = repeats.map(|((_, name), places)| {
        format!("{name} is defined {} times: {}", places.len(), places.join(", "))
    });
    repeats.chain(unused).collect()
}

/// Returns the name if the line defines a type that is visible outside its module.
fn type_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(") ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    let (kind, rest) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    if !["struct", "enum", "union", "trait", "type"].contains(&kind) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    // A macro's `$name` is not a name.
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_files(files: &[(&str, &str)], allowed: &[&str], expected: &[&str]) {
        let file = |&(path, text): &(&str, &str)| Source { path: path.into(), text: text.into() };
        let sources: Vec<Source> = files.iter().map(file).collect();
        assert_eq!(problems(&sources, allowed), expected, "{files:?}");
    }

    #[test]
    fn a_name_that_is_defined_twice_in_a_crate_is_found_with_its_places() {
        let a = ("crates/a/src/a.rs", "//! A.\npub(in crate::x) struct Step(u8);\n");
        let twice = ["Step is defined 2 times: crates/a/src/a.rs:2, crates/a/src/b.rs:1"];
        for second in [
            "pub struct Step;",
            "    pub(super) enum Step {",
            "pub(crate) trait Step: Send {",
            "pub unsafe trait Step {}",
            "pub type Step<T> = Vec<T>;",
        ] {
            check_files(&[a, ("crates/a/src/b.rs", second)], &[], &twice);
        }
        check_files(&[a, ("crates/a/src/b.rs", "pub struct Step;")], &["Step"], &[]);
    }

    #[test]
    fn other_crates_private_types_and_tests_may_repeat_a_name() {
        let a = ("crates/a/src/a.rs", "pub struct Step;");
        check_files(&[a, ("crates/b/src/a.rs", "pub struct Step;")], &[], &[]);
        check_files(&[a, ("crates/a/tests/a.rs", "pub struct Step;")], &[], &[]);
        check_files(&[a, ("crates/a/src/x/tests.rs", "pub struct Step;")], &[], &[]);
        check_files(&[a, ("crates/a/src/b.rs", "struct Step;\npub struct Steps;")], &[], &[]);
        let tests = "#[cfg(test)]\nmod tests {\n    pub struct Step;\n}\n";
        check_files(&[a, ("crates/a/src/b.rs", tests)], &[], &[]);
        let behind = format!("{tests}pub struct Step;");
        let twice = "Step is defined 2 times: crates/a/src/a.rs:1, crates/a/src/b.rs:5";
        check_files(&[a, ("crates/a/src/b.rs", &behind)], &[], &[twice]);
    }

    #[test]
    fn an_allowed_name_that_is_defined_once_is_found() {
        let unused = "Step is defined once now: take it off ALLOWED";
        check_files(&[("crates/a/src/a.rs", "pub struct Step;")], &["Step"], &[unused]);
    }
}
