//! Stream calls that a test client passes on unchanged.

/// Generates, within an `impl StreamApi`, calls that are passed to the field unchanged.
macro_rules! delegate {
    ($to:ident:) => {};
    ($to:ident: describe $($rest:ident)*) => {
        async fn describe(
            &self,
            stream: &anabranch_model::ids::StreamName,
        ) -> Result<anabranch::stream::api::StreamSummary, anabranch::stream::api::StreamError> {
            self.$to.describe(stream).await
        }
        delegate!($to: $($rest)*);
    };
    ($to:ident: list_shards $($rest:ident)*) => {
        async fn list_shards(
            &self,
            stream: &anabranch_model::ids::StreamName,
            filter: anabranch::stream::api::ShardFilter,
        ) -> Result<anabranch::stream::api::ShardList, anabranch::stream::api::StreamError> {
            self.$to.list_shards(stream, filter).await
        }
        delegate!($to: $($rest)*);
    };
    ($to:ident: iterator $($rest:ident)*) => {
        async fn iterator(
            &self,
            stream: &anabranch_model::ids::StreamName,
            shard: &anabranch_model::ids::ShardId,
            at: anabranch::stream::api::ReadFrom,
        ) -> Result<anabranch::stream::api::ShardIterator, anabranch::stream::api::StreamError> {
            self.$to.iterator(stream, shard, at).await
        }
        delegate!($to: $($rest)*);
    };
    ($to:ident: records $($rest:ident)*) => {
        async fn records(
            &self,
            stream: &anabranch_model::ids::StreamName,
            iterator: &anabranch::stream::api::ShardIterator,
            limit: u32,
        ) -> Result<anabranch::stream::api::FetchedRecords, anabranch::stream::api::StreamError> {
            self.$to.records(stream, iterator, limit).await
        }
        delegate!($to: $($rest)*);
    };
    // Registering, describing and deregistering a consumer.
    ($to:ident: consumers $($rest:ident)*) => {
        async fn register_consumer(
            &self,
            stream: &anabranch::stream::api::StreamSummary,
            name: &str,
        ) -> Result<anabranch::stream::api::FanOutConsumer, anabranch::stream::api::StreamError> {
            self.$to.register_consumer(stream, name).await
        }

        async fn describe_consumer(
            &self,
            stream: &anabranch::stream::api::StreamSummary,
            name: &str,
        ) -> Result<anabranch::stream::api::FanOutConsumer, anabranch::stream::api::StreamError> {
            self.$to.describe_consumer(stream, name).await
        }

        async fn deregister_consumer(
            &self,
            consumer: &anabranch::stream::api::FanOutConsumer,
        ) -> Result<(), anabranch::stream::api::StreamError> {
            self.$to.deregister_consumer(consumer).await
        }
        delegate!($to: $($rest)*);
    };
    ($to:ident: subscribe $($rest:ident)*) => {
        async fn subscribe(
            &self,
            consumer: &anabranch::stream::api::FanOutConsumer,
            shard: &anabranch_model::ids::ShardId,
            at: anabranch::stream::api::ReadFrom,
        ) -> Result<anabranch::stream::api::Subscription, anabranch::stream::api::StreamError> {
            self.$to.subscribe(consumer, shard, at).await
        }
        delegate!($to: $($rest)*);
    };
    ($to:ident: put_records $($rest:ident)*) => {
        async fn put_records(
            &self,
            stream: &anabranch_model::ids::StreamName,
            entries: &[anabranch::stream::api::PutEntry],
        ) -> Result<Vec<anabranch::stream::api::PutEntryResult>, anabranch::stream::api::StreamError>
        {
            self.$to.put_records(stream, entries).await
        }
        delegate!($to: $($rest)*);
    };
    ($to:ident: put_record $($rest:ident)*) => {
        async fn put_record(
            &self,
            stream: &anabranch_model::ids::StreamName,
            entry: &anabranch::stream::api::PutEntry,
            after: Option<anabranch_model::sequence::SequenceNumber>,
        ) -> Result<anabranch::stream::api::Placement, anabranch::stream::api::StreamError> {
            self.$to.put_record(stream, entry, after).await
        }
        delegate!($to: $($rest)*);
    };
}
