//! A store with one table for each stream: a single-stream table holds one, and the suite uses
//! many.

use anabranch::lease::{DynamoDbStore, LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseKey, LeaseListing, WorkerId, WorkerRow, Write,
    WriteOutcome, WriteRefusal,
};
use aws_types::SdkConfig;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Mutex;

#[derive(Clone)]
pub(crate) struct TablePerStream {
    config: SdkConfig,
    made: Arc<Mutex<HashSet<StreamName>>>,
}

impl TablePerStream {
    pub(crate) fn new(config: SdkConfig) -> Self {
        Self { config, made: Arc::default() }
    }

    async fn of(&self, stream: &StreamName) -> Result<DynamoDbStore, StoreError> {
        let store = DynamoDbStore::kcl(&self.config, format!("app-{stream}"));
        let mut made = self.made.lock().await;
        if made.insert(stream.clone()) {
            store.prepare().await?;
        }
        Ok(store)
    }
}

impl LeaseStore for TablePerStream {
    fn layout(&self) -> Layout {
        Layout::Kcl
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        DynamoDbStore::kcl(&self.config, "app").prepare().await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        Ok(ApplicationFacts::default())
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        DynamoDbStore::kcl(&self.config, "app").poll().await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.of(stream).await?.list(stream).await
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.of(&key.stream).await?.get(key).await
    }

    async fn worker(&self, _: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        Ok(None)
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        match write {
            Write::Lease { key, .. } => self.of(&key.stream).await?.write(write).await,
            _ => Ok(WriteOutcome::Refused { why: WriteRefusal::Unsupported, now: None }),
        }
    }
}
