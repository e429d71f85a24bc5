//! The commands, one module each.

pub(crate) mod local;
pub(crate) mod demo;
pub(crate) mod put;
pub(crate) mod consume;
pub(crate) mod shards;
pub(crate) mod relay;
pub(crate) mod shell;
