//! `cargo xtask sim`: runs seeds and says how to replay one that fails.

fn main() {}
