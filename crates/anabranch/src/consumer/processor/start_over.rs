//! A processor that can't go on.

/// What a processor fails with that can't go on: it has lost what it held in memory, such as
/// records that it was given and has not checkpointed.
///
/// From `initialize`, `process_records` or `shard_ended` it has a new processor made, which begins
/// at the last checkpoint, after a pause that grows as long as the checkpoint does not move. The
/// lease stays where it is. The old one is told nothing more.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct RestartProcessor {
    why: String,
}

impl RestartProcessor {
    /// With the reason, for the operator.
    pub fn because(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}
