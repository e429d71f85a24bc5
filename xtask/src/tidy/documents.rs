//! Documents: the code that they name is there, and the two that newcomers read first are short.

use super::sources::Source;
use crate::shell::root;
use std::fs;
use std::path::Path;

/// Documents that name code by its path.
const NAMING_CODE: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Folders whose paths are names of code. A path into another folder is not checked.
const TOPS: [&str; 4] = ["crates/", "sim/", "xtask/", "docs/"];

const ARCHITECTURE_MAX_BYTES: usize = 15 * 1024;
const README_MAX_LINES: usize = 150;

/// Fails for each file, folder and function that a document names and the repository lacks.
pub(crate) fn check_named_code(sources: &[Source]) -> Result<(), String> {
    let exists = |path: &str| root().join(path).exists();
    let mut problems = Vec::new();
    for document in NAMING_CODE {
        let missing = missing_names(&read(document)?, sources, &exists);
        problems.extend(missing.iter().map(|name| format!("{document}: {name}")));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Fails when ARCHITECTURE.md or README.md is too long.
pub(crate) fn check_lengths() -> Result<(), String> {
    let problems = too_long(&read("ARCHITECTURE.md")?, &read("README.md")?);
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn read(document: &str) -> Result<String, String> {
    fs::read_to_string(root().join(document)).map_err(|error| format!("{document}: {error}"))
}

fn too_long(architecture: &str, readme: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (bytes, lines) = (architecture.len(), readme.lines().count());
    if bytes > ARCHITECTURE_MAX_BYTES {
        problems.push(format!(
            "ARCHITECTURE.md has {bytes} bytes, at most {ARCHITECTURE_MAX_BYTES}: move details to \
             doc comments or docs/decisions"
        ));
    }
    if lines > README_MAX_LINES {
        problems.push(format!(
            "README.md has {lines} lines, at most {README_MAX_LINES}: move details to docs/"
        ));
    }
    problems
}

/// Returns the names of code in backticks that are not there, each with the reason.
fn missing_names(text: &str, sources: &[Source], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    for name in in_backticks(text) {
        // `crates/anabranch/tests/<area>` and `foo/mod.rs` stand for any name.
        if name.contains('<') || name.starts_with("foo/") {
            continue;
        }
        if let Some((stem, function)) = name.split_once(".rs::") {
            match find(sources, &format!("{stem}.rs")) {
                None => missing.push(format!("`{name}`: there is no file {stem}.rs")),
                Some(source) if !has_function(&source.text, function) => {
                    missing.push(format!("`{name}`: {} has no fn {function}", source.path));
                }
                Some(_) => {}
            }
        } else if TOPS.iter().any(|top| name.starts_with(top)) {
            if !exists(&name) {
                missing.push(format!("`{name}`: there is no such file or folder"));
            }
        } else if is_rust_file(&name) && find(sources, &name).is_none() {
            missing.push(format!("`{name}`: no source file ends with this path"));
        }
    }
    missing
}

/// Returns the source with this path. A path that begins below the top folders, such as
/// `lease/deadline.rs`, finds the first source that ends with it.
fn find<'a>(sources: &'a [Source], path: &str) -> Option<&'a Source> {
    if TOPS.iter().any(|top| path.starts_with(top)) {
        return sources.iter().find(|source| source.path == path);
    }
    sources.iter().find(|source| source.path.ends_with(&format!("/{path}")))
}

fn is_rust_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "rs")
}

fn has_function(text: &str, name: &str) -> bool {
    ["(", "<"].iter().any(|end| text.contains(&format!("fn {name}{end}")))
}

/// Returns the text between backticks, outside code blocks.
fn in_backticks(text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.extend([line, "\n"]);
        }
    }
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(text: &str, expected: &[&str]) {
        let file = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let sources = [
            file("crates/a/src/lease/plan.rs", "fn plan_all() {}\npub(crate) fn plan<T>() {}"),
            file("crates/a/src/lib.rs", "mod lease;"),
        ];
        let exists = |path: &str| {
            ["crates/a/src/lease", "crates/a/src/lib.rs", "docs/decisions/"].contains(&path)
        };
        let found = missing_names(text, &sources, &exists);
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn files_functions_and_folders_that_are_gone_are_found() {
        check_text("`crates/a/src/lease/plan.rs::plan` and `plan.rs::plan_all`", &[]);
        check_text("`crates/a/src/lease/plan.rs::pla`", &["has no fn pla"]);
        check_text("`crates/a/src/plan.rs::plan`", &["no file crates/a/src/plan.rs"]);
        check_text("`crates/a/src/lib.rs`, `lease/plan.rs`, `docs/decisions/`", &[]);
        check_text("`crates/a/src/gone`, `docs/gone.md`", &["src/gone", "docs/gone.md"]);
        check_text("`lease/gone.rs`", &["no source file ends"]);
        check_text("`<area>/x.rs`, `foo/mod.rs`, `cargo test`, `Ticket`, `target/x`", &[]);
        check_text("```sh\ncat `crates/gone`\n```\n`crates/a/src/lease`", &[]);
    }

    #[test]
    fn documents_above_their_limit_are_found() {
        let architecture = "x".repeat(ARCHITECTURE_MAX_BYTES);
        let readme = "line\n".repeat(README_MAX_LINES);
        assert_eq!(too_long(&architecture, &readme), Vec::<String>::new());
        let found = too_long(&format!("{architecture}x"), &format!("{readme}line\n"));
        assert!(found[0].contains("15361 bytes") && found[1].contains("151 lines"), "{found:?}");
    }
}
