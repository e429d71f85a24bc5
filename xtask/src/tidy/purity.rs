//! What each crate may depend on, read from `cargo tree`.

use crate::shell::{cargo, output};
use std::collections::BTreeSet;

/// All that the model may stand on: buffers, MD5, error messages, and what these are made of.
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

/// The crates that a package is built from, itself included.
fn dependencies(package: &str) -> Result<BTreeSet<String>, String> {
    let tree = ["tree", "--package", package, "--edges", "normal", "--prefix", "none"];
    let text = output(&mut cargo(&tree))?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}
