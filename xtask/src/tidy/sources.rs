//! The files that the rules read.

use crate::shell::root;
use std::fs;
use std::path::Path;

/// One source file or document.
pub(crate) struct Source {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Returns true if the whole file is test, bench or example code.
    pub(crate) fn is_test(&self) -> bool {
        let in_folder = |dir| self.path.contains(dir);
        ["/tests/", "/benches/", "/examples/"].into_iter().any(in_folder)
            || self.path.ends_with("/tests.rs")
    }

    /// Returns the numbered lines of product code: all but the items under `#[cfg(test)]`.
    pub(crate) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut test_item = TestItem::None;
        let lines = self.text.lines().enumerate().map(|(i, line)| (i + 1, line));
        lines.filter(move |(_, line)| {
            let is_product;
            (test_item, is_product) = test_item.after(line);
            is_product
        })
    }
}

/// Position inside an item under `#[cfg(test)]`, in code that rustfmt has formatted.
#[derive(Clone, Copy)]
enum TestItem {
    None,
    /// Between the attribute and the item's first line.
    Attributes {
        indent: usize,
    },
    /// In the item, which ends with a `}` at this indent.
    Body {
        indent: usize,
    },
}

impl TestItem {
    /// Returns the position after this line, and true if the line is product code.
    fn after(self, line: &str) -> (Self, bool) {
        let text = line.trim();
        let line_indent = line.len() - line.trim_start().len();
        match self {
            Self::None
                if ["#[cfg(test)]", "#[cfg(all(test"].iter().any(|a| text.starts_with(a)) =>
            {
                (Self::Attributes { indent: line_indent }, false)
            }
            Self::None => (Self::None, true),
            Self::Attributes { .. } if text.starts_with("#[") || text.starts_with("//") => {
                (self, false)
            }
            Self::Attributes { .. } if text.ends_with([';', '}', ',']) => (Self::None, false),
            Self::Attributes { indent } => (Self::Body { indent }, false),
            Self::Body { indent } if line_indent == indent && text.starts_with('}') => {
                (Self::None, false)
            }
            Self::Body { .. } => (self, false),
        }
    }
}

/// Returns all Rust sources of the workspace, in path order.
pub(crate) fn all() -> Vec<Source> {
    with_extension("rs", &["crates", "sim", "xtask"])
}

/// Returns all Markdown documents of the repository, in path order.
pub(crate) fn documents() -> Vec<Source> {
    with_extension("md", &[""])
}

fn with_extension(extension: &str, tops: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    for top in tops {
        collect(&root().join(top), extension, &mut found);
    }
    found.sort_by(|a: &Source, b: &Source| a.path.cmp(&b.path));
    found
}

fn collect(dir: &Path, extension: &str, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name != "target" && name != "node_modules" && !name.starts_with('.') {
                collect(&path, extension, found);
            }
        } else if path.extension().is_some_and(|ext| ext == extension) {
            let relative =
                path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.push(Source { path: relative, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_under_cfg_test_are_no_product_code() {
        let text = "one\n#[cfg(test)]\nmod tests;\ntwo\n    #[cfg(test)]\n    #[inline]\n    fn f(\n\
                    \x20       a: u8,\n    ) {\n        if b {\n        }\n    }\nthree\n\
                    #[cfg(all(test, unix))]\nmod tests {\n    x\n}\nfour\n";
        let source = Source { path: "crates/a/src/b.rs".into(), text: text.into() };
        let lines: Vec<_> = source.product_lines().collect();
        assert_eq!(lines, [(1, "one"), (4, "two"), (13, "three"), (18, "four")]);
    }
}
