//! The map of the source files: each with the first sentence of its doc comment.

use super::sources::Source;
use std::collections::BTreeMap;

/// Fails for each file that does not begin with a doc comment.
pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    let silent = sources.iter().filter(|source| !has_head(&source.text));
    let problems: Vec<String> = silent
        .map(|source| format!("{}: say in a `//!` on the first line what it holds", source.path))
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Renders one block of paths per folder, in path order.
pub(crate) fn render(sources: &[Source]) -> String {
    let mut folders: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        folders.entry(folder).or_default().push(source);
    }
    let block = |files: Vec<&Source>| -> String {
        let width = files.iter().map(|file| file.path.len()).max().unwrap_or(0);
        let line =
            |file: &Source| format!("{:width$}  {}\n", file.path, first_sentence(&file.text));
        files.into_iter().map(line).collect()
    };
    folders.into_values().map(block).collect::<Vec<_>>().join("\n")
}

fn has_head(text: &str) -> bool {
    let head = text.lines().next().and_then(|line| line.strip_prefix("//! "));
    head.is_some_and(|head| !head.trim().is_empty())
}

/// Returns the first sentence of a file's doc comment on one line. Empty if there is none.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
    let paragraph = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    paragraph.split_inclusive(". ").next().unwrap_or_default().trim().to_owned()
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
            source(
                "crates/a/src/x/longer.rs",
                "//! Does one\n//! thing. And more.\n//!\n//! Rest.",
            ),
            source("crates/a/src/x/y.rs", "//! Does two.\n"),
            source("crates/a/tests/t.rs", "//! Tries it.\nfn f() {}\n"),
        ];
        let expected = "crates/a/src/x/longer.rs  Does one thing.\n\
                        crates/a/src/x/y.rs       Does two.\n\n\
                        crates/a/tests/t.rs  Tries it.\n";
        assert_eq!(render(&sources), expected);
        assert_eq!(check(&sources), Ok(()));
    }

    #[test]
    fn a_file_that_does_not_begin_with_a_doc_line_is_named() {
        for text in ["fn f() {}\n", "//!\n//! Late.\n", "//!  \n", "", "use a;\n//! Late.\n"] {
            let error = check(&[source("crates/a/src/x.rs", text)]).unwrap_err();
            assert!(error.contains("crates/a/src/x.rs"), "{text:?}: {error}");
        }
    }
}
