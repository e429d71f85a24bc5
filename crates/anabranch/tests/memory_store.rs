//! The memory store passes the suite in both layouts.

use anabranch::lease::{MemoryStore, conformance};
use anabranch_model::lease::Layout;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_keeps_the_rules_of_the_native_layout() {
    conformance::run(MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_keeps_the_rules_of_kcls_layout() {
    conformance::run(MemoryStore::with_layout(Layout::Kcl)).await;
}
