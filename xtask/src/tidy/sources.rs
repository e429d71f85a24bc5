//! The source files that the rules look at.

use crate::shell::root;
use std::fs;
use std::path::Path;

/// One Rust source file.
pub(crate) struct Source {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    /// What it says.
    pub(crate) text: String,
}

impl Source {
    /// Whether the file is a test, a bench or an example as a whole.
    pub(crate) fn is_test(&self) -> bool {
        ["/tests/", "/benches/", "/examples/"].iter().any(|dir| self.path.contains(dir))
    }

    /// The numbered lines of product code: what stands before the file's test module.
    pub(crate) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        lines.enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// All Rust sources of the workspace, in path order.
pub(crate) fn all() -> Vec<Source> {
    let mut found = Vec::new();
    for top in ["crates", "sim", "xtask"] {
        collect(&root().join(top), &mut found);
    }
    found.sort_by(|a: &Source, b: &Source| a.path.cmp(&b.path));
    found
}

fn collect(dir: &Path, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, found);
            }
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let relative =
                path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.push(Source { path: relative, text });
        }
    }
}
