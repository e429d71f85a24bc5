//! The library compiles without warnings with each of its features alone.

use crate::shell::{cargo, output, profile, root};

/// Compiles the library without features, and then with each feature of its manifest alone.
pub(super) fn check() -> Result<(), String> {
    let manifest = root().join("crates/anabranch/Cargo.toml");
    let manifest = std::fs::read_to_string(&manifest)
        .map_err(|error| format!("{} can't be read: {error}", manifest.display()))?;
    for feature in std::iter::once("").chain(features(&manifest)) {
        let mut check = cargo(&["clippy", "--profile", profile(), "-p", "anabranch", "--lib"]);
        check.args(["--locked", "--no-default-features", "--features", feature]);
        check.args(["--", "-D", "warnings"]);
        output(&mut check).map_err(|why| format!("with {feature:?} as the only feature: {why}"))?;
    }
    Ok(())
}

/// Returns the names in the `[features]` table of a manifest, without `default`.
fn features(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[features]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim()))
        .filter(|name| !name.starts_with('#') && *name != "default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_their_table_alone() {
        let manifest = "[package]\nname = \"a\"\n[features]\ndefault = [\"b\"]\n# Of d = e.\n\
                        b = []\nc = [\"b\"]\n\n[dependencies]\nf = \"1\"\n";
        assert_eq!(features(manifest).collect::<Vec<_>>(), ["b", "c"]);
    }
}
