//! The DynamoDB store in both layouts, on the local stream's DynamoDB and on DynamoDB Local.

#[path = "../bad_row/mod.rs"]
mod bad_row;
mod server;
mod wire;
mod table_per_stream;
mod suite;
mod faults;
mod tables;
mod kcl_rows;
mod bad_rows;
mod survey;
mod cost;
mod java;
