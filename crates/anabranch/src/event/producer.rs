//! What happens inside a producer.

use anabranch_model::ids::StreamName;

/// What happened inside a producer.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ProducerEvent {
    /// It was dropped with records whose fate nobody will learn.
    Abandoned {
        /// The stream.
        stream: StreamName,
        /// How many.
        records: u64,
    },
}
