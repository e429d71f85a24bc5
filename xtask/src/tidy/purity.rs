//! Purity of the model and independence of the local stream, by their dependencies.

use crate::shell::{cargo, output};
use std::collections::BTreeSet;

/// Crates that the model may depend on: buffers, MD5, error messages, and their dependencies.
const MODEL_MAY_USE: [&str; 16] = [
    "anabranch-model",
    "bytes",
    "md-5",
    "digest",
    "block-buffer",
    "crypto-common",
    "hybrid-array",
    "generic-array",
    "typenum",
    "cfg-if",
    "thiserror",
    "thiserror-impl",
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
];

pub(crate) fn check() -> Result<(), String> {
    let model = dependencies("anabranch-model")?;
    let allowed: BTreeSet<String> = MODEL_MAY_USE.iter().map(ToString::to_string).collect();
    let strays: Vec<&String> = model.difference(&allowed).collect();
    if !strays.is_empty() {
        return Err(format!("anabranch-model must stay pure, but depends on {strays:?}"));
    }
    // The embedded stream is the judge of the library, so it must not be built on it.
    if dependencies("anabranch-local")?.contains("anabranch") {
        return Err("anabranch-local must not depend on anabranch".to_owned());
    }
    Ok(())
}

/// Returns the crates that a package is built from, itself included.
fn dependencies(package: &str) -> Result<BTreeSet<String>, String> {
    let tree = ["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--locked"];
    let text = output(&mut cargo(&tree))?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}
