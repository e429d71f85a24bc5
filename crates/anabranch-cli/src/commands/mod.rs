//! One file a command.

pub(crate) mod local;
pub(crate) mod demo;
