//! A local Kinesis stream: the engine in process, and the same engine over HTTP.

mod wire;
pub mod persist;
