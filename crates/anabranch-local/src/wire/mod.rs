//! What goes over the wire: bodies in JSON and CBOR, and the frames of an event stream.

pub(crate) mod cbor;
pub(crate) mod json;
pub(crate) mod event_stream;
