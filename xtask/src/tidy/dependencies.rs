//! Licences, duplicates and sources of the dependencies, by the lists of `deny.toml`.
//!
//! `cargo deny check licenses bans sources` applies the same lists, for all platforms. This check
//! needs no other program and no network. It sees the licences of this platform's dependencies, and
//! the duplicates and sources of all platforms.

use crate::shell::{cargo, output, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const RULES: &str = "deny.toml";
const LOCK: &str = "Cargo.lock";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) fn check() -> Result<(), String> {
    let (rules, lock) = (read(RULES)?, read(LOCK)?);
    let packages = packages(&lock);
    let mut problems = bad_licences(&licences()?, &list(&rules, "allow"));
    problems.extend(bad_duplicates(&packages, &list(&rules, "skip")));
    problems.extend(bad_sources(&packages));
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Returns a line `name version|licence` for each dependency on this platform.
fn licences() -> Result<BTreeSet<String>, String> {
    let tree = ["tree", "--workspace", "--all-features", "--prefix", "none", "--locked"];
    let text = output(cargo(&tree).args(["--format", "{p}|{l}"]))?;
    let lines = text.lines().filter(|line| !line.is_empty());
    Ok(lines.map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}

fn bad_licences(lines: &BTreeSet<String>, allowed: &[Vec<&str>]) -> Vec<String> {
    let allowed: Vec<&str> = allowed.concat();
    let bad = lines.iter().filter_map(|line| {
        let (package, licence) = line.split_once('|')?;
        (!is_allowed(licence, &allowed))
            .then(|| format!("{package} has the licence {licence:?}, which {RULES} does not allow"))
    });
    bad.collect()
}

/// Evaluates an SPDX expression. An older form writes `/` for OR.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let licence = licence.trim();
    if let Some((left, right)) = split_outside_parentheses(licence, " OR ")
        .or_else(|| split_outside_parentheses(licence, "/"))
    {
        return is_allowed(left, allowed) || is_allowed(right, allowed);
    }
    if let Some((left, right)) = split_outside_parentheses(licence, " AND ") {
        return is_allowed(left, allowed) && is_allowed(right, allowed);
    }
    match licence.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => is_allowed(inner, allowed),
        None => allowed.contains(&licence),
    }
}

fn split_outside_parentheses<'a>(text: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    let open = |at: usize| text[..at].matches('(').count() == text[..at].matches(')').count();
    let (at, _) = text.match_indices(separator).find(|(at, _)| open(*at))?;
    Some((&text[..at], &text[at + separator.len()..]))
}

/// One entry of Cargo.lock.
struct LockedPackage<'a> {
    name: &'a str,
    version: &'a str,
    /// Empty for a crate of this workspace.
    source: &'a str,
}

fn packages(lock: &str) -> Vec<LockedPackage<'_>> {
    let entries = lock.split("[[package]]").skip(1);
    let packages = entries.map(|entry| {
        let value = |key: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.unwrap_or_default().trim_matches('"')
        };
        LockedPackage { name: value("name"), version: value("version"), source: value("source") }
    });
    packages.collect()
}

/// Finds crates of which more than one version is left without the skipped ones, and entries of the
/// skip list that are no longer needed.
fn bad_duplicates(packages: &[LockedPackage<'_>], skip: &[Vec<&str>]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(package.name).or_default().push(package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let mut problems = Vec::new();
    for entry in skip {
        let &[name, required] = entry.as_slice() else {
            problems.push(format!("{RULES}: write {{ name = …, version = … }} for {entry:?}"));
            continue;
        };
        let found = versions.get_mut(name).is_some_and(|versions| {
            let before = versions.len();
            versions.retain(|version| !matches(version, required));
            versions.len() < before
        });
        if !found {
            problems.push(format!("{name} {required} is no duplicate now: remove it from {RULES}"));
        }
    }
    for (name, versions) in versions {
        if versions.is_empty() {
            problems.push(format!("{RULES} skips every version of {name}: keep one off the list"));
        } else if versions.len() > 1 {
            let versions = versions.join(", ");
            problems.push(format!("{name} has the versions {versions}; see `cargo tree -d`"));
        }
    }
    problems
}

/// Returns true if the version is `required`, or begins with its parts.
fn matches(version: &str, required: &str) -> bool {
    version.strip_prefix(required).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn bad_sources(packages: &[LockedPackage<'_>]) -> Vec<String> {
    let elsewhere = packages.iter().filter(|p| !["", CRATES_IO].contains(&p.source));
    elsewhere.map(|p| format!("{} {} comes from {}", p.name, p.version, p.source)).collect()
}

/// Returns the quoted strings on each line of a list of `deny.toml`.
fn list<'a>(rules: &'a str, key: &str) -> Vec<Vec<&'a str>> {
    let start = format!("{key} = [");
    let lines = rules.lines().skip_while(|line| **line != start).skip(1);
    let lines = lines.take_while(|line| *line != "]").map(str::trim);
    let entries = lines.filter(|line| !line.starts_with('#'));
    entries.map(|line| line.split('"').skip(1).step_by(2).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [&str; 0] = [];

    #[test]
    fn licence_expressions_are_evaluated() {
        for (licence, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND ISC", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("MIT WITH LLVM-exception", false),
        ] {
            assert_eq!(is_allowed(licence, &["MIT", "ISC"]), expected, "{licence}");
        }
        let tree = BTreeSet::from(["a v1.0|MIT".to_owned(), "b v2.0|GPL-3.0".to_owned()]);
        let found = bad_licences(&tree, &[vec!["MIT"]]);
        assert_eq!(found, ["b v2.0 has the licence \"GPL-3.0\", which deny.toml does not allow"]);
    }

    fn check_duplicates(versions: &[&str], skip: &[Vec<&str>], expected: &[&str]) {
        let package = |version| LockedPackage { name: "a", version, source: CRATES_IO };
        let packages: Vec<_> = versions.iter().map(|version| package(version)).collect();
        let found = bad_duplicates(&packages, skip);
        assert_eq!(found.len(), expected.len(), "{versions:?}, {skip:?}: {found:?}");
        assert!(found.iter().zip(expected).all(|(f, e)| f.contains(e)), "{found:?}");
    }

    #[test]
    fn a_new_duplicate_and_a_skip_that_is_not_needed_are_found() {
        check_duplicates(&["1.2.0"], &[], &NONE);
        check_duplicates(&["1.2.0", "2.0.1"], &[], &["a has the versions 1.2.0, 2.0.1"]);
        check_duplicates(&["1.2.0", "2.0.1"], &[vec!["a", "1"]], &NONE);
        check_duplicates(&["1.2.0", "10.0.1"], &[vec!["a", "1"]], &NONE);
        check_duplicates(&["2.0.1"], &[vec!["a", "1"]], &["a 1 is no duplicate now"]);
        check_duplicates(&["1.2.0", "2.0.1"], &[vec!["a"]], &["version = …", "a has the versions"]);
        let both = [vec!["a", "1"], vec!["a", "2"]];
        check_duplicates(&["1.2.0", "2.0.1"], &both, &["skips every version of a"]);
    }

    #[test]
    fn a_source_other_than_the_registry_is_found() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
                    source = \"git+https://example.com/a\"\n\n[[package]]\nname = \"b\"\n\
                    version = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";
        let found = bad_sources(&packages(lock));
        assert_eq!(found, ["a 1.0.0 comes from git+https://example.com/a"]);
        let registry = lock.replace("git+https://example.com/a", CRATES_IO);
        assert_eq!(bad_sources(&packages(&registry)), NONE);
    }

    #[test]
    fn lists_are_read_from_the_rules() {
        let rules = "[licenses]\nallow = [\n    # why\n    \"MIT\",\n]\n[bans]\nskip = [\n\
                     \x20   { name = \"a\", version = \"1\" },\n]\n";
        assert_eq!(list(rules, "allow"), [["MIT"]]);
        assert_eq!(list(rules, "skip"), [["a", "1"]]);
    }
}
