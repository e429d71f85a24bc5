//! The file map of ARCHITECTURE.md: each source file once, with the first sentence of its own doc.
//!
//! The map is made from the sources (`cargo xtask map`), so a description can't contradict its
//! file; tidy fails when the page differs from what would be made.

use super::sources::Source;
use crate::shell::root;
use std::collections::BTreeMap;
use std::fs;

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "## File map\n";

/// Fails when the page's map is not the one that the sources make.
pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let page = read()?;
    if page == with_map(&page, &render(sources)?)? {
        Ok(())
    } else {
        Err(format!("the file map of {PAGE} is out of date; run `cargo xtask map`"))
    }
}

/// Writes the map into the page.
pub(crate) fn write(sources: &[Source]) -> Result<(), String> {
    let page = with_map(&read()?, &render(sources)?)?;
    fs::write(root().join(PAGE), page).map_err(|e| format!("{PAGE}: {e}"))
}

fn read() -> Result<String, String> {
    fs::read_to_string(root().join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))
}

/// The page with its map replaced: all between the heading and the next one of its rank.
fn with_map(page: &str, map: &str) -> Result<String, String> {
    let (before, rest) =
        page.split_once(HEADING).ok_or_else(|| format!("{PAGE} has no section \"File map\""))?;
    let after = rest.find("\n## ").map_or("", |at| &rest[at..]);
    Ok(format!("{before}{HEADING}{map}{after}"))
}

/// One table a folder, in path order.
fn render(sources: &[Source]) -> Result<String, String> {
    let mut folders: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    let mut silent = Vec::new();
    for source in sources {
        let (folder, file) = folder_and_file(&source.path);
        match first_sentence(&source.text) {
            Some(doc) => folders.entry(folder).or_default().push((file, doc)),
            None => {
                silent.push(format!("{} has no `//!` line that says what it holds", source.path));
            }
        }
    }
    if !silent.is_empty() {
        return Err(silent.join("\n"));
    }
    let mut map = String::new();
    for (folder, files) in folders {
        map.extend(["\n### `", folder, "`\n\n| file | what it holds |\n|---|---|\n"]);
        for (file, doc) in files {
            map.extend(["| `", file, "` | ", &doc, " |\n"]);
        }
    }
    Ok(map)
}

/// A crate's folder (up to `src` or its twin) and the path inside it.
fn folder_and_file(path: &str) -> (&str, &str) {
    let tops = ["/src/", "/tests/", "/benches/", "/examples/", "/fuzz_targets/"];
    let cut = tops.iter().filter_map(|top| path.find(top).map(|at| at + top.len())).min();
    let cut = cut.unwrap_or_else(|| path.rfind('/').map_or(0, |at| at + 1));
    (path[..cut].trim_end_matches('/'), &path[cut..])
}

/// The first sentence of a file's doc comment, on one line and fit for a table.
fn first_sentence(text: &str) -> Option<String> {
    let doc = text.lines().skip_while(|line| !line.starts_with("//! "));
    let paragraph: Vec<&str> =
        doc.map_while(|line| line.strip_prefix("//! ")).map(str::trim).collect();
    let paragraph = paragraph.join(" ");
    let sentence = paragraph.split_inclusive(". ").next()?.trim().trim_end_matches('.');
    if sentence.is_empty() { None } else { Some(sentence.replace('|', "\\|")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn the_map_has_each_file_once_with_its_first_sentence() {
        let sources = [
            source("crates/a/src/x/y.rs", "//! Does one\n//! thing. And more.\n//!\n//! Rest.\n"),
            source("crates/a/tests/t.rs", "//! Tries it.\nfn f() {}\n"),
        ];
        let map = render(&sources).unwrap();
        assert!(map.contains("### `crates/a/src`\n\n| file | what it holds |\n|---|---|\n| `x/y.rs` | Does one thing |\n"), "{map}");
        assert!(map.contains("### `crates/a/tests`"), "{map}");
        let page = with_map("# A\n\n## File map\nstale\n\n## Next\nmore\n", &map).unwrap();
        assert!(!page.contains("stale") && page.ends_with("\n## Next\nmore\n"), "{page}");
        assert_eq!(with_map(&page, &map).unwrap(), page);
    }

    #[test]
    fn a_file_without_a_doc_line_is_named() {
        let error = render(&[source("crates/a/src/x.rs", "fn f() {}\n")]).unwrap_err();
        assert!(error.contains("crates/a/src/x.rs"), "{error}");
    }
}
