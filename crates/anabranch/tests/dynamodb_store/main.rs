//! The DynamoDB store in both layouts, on the local stream's DynamoDB and on DynamoDB Local.

mod server;
mod table_per_stream;
mod suite;
