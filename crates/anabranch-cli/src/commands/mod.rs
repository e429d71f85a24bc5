//! The commands, one module each.

pub(crate) mod local;
pub(crate) mod demo;
pub(crate) mod put;
pub(crate) mod tail;
pub(crate) mod cp;
pub(crate) mod consume;
pub(crate) mod redrive;
pub(crate) mod shards;
pub(crate) mod leases;
pub(crate) mod doctor;
pub(crate) mod relay;
pub(crate) mod multilang;
pub(crate) mod shell;
