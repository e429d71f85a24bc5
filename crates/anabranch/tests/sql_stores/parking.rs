//! Dead letters in a table of PostgreSQL.

use crate::postgres_server::Server;
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{
    Consumer, DeadLetterQueue, DeadLetterTable, Delivery, HandlerError, OnError,
};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch_local::op::put_records::{Payload, PutRecordsEntry};
use anabranch_local::op::{create_stream, put_record};
use anabranch_local::{Engine, EngineOptions, StreamRef};
use sqlx::postgres::PgConnectOptions;
use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_parked_in_postgresql_whole_and_redriven_in_order() {
    let Some(server) = Server::shared() else { return };
    let options: PgConnectOptions = server.fresh_database().parse().unwrap();
    let pool = sqlx::PgPool::connect_lazy_with(options);
    let park =
        DeadLetterQueue::from(DeadLetterTable::postgres(pool.clone(), "public.parked").unwrap());
    let engine = Arc::new(Engine::new(EngineOptions::instant(), anabranch_local::Clock::system()));
    let request = create_stream::Request {
        stream_name: Some("orders".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    engine.create_stream(&request).unwrap();
    // A key and data that are not valid database text.
    let key = "key \0 \"quoted\"";
    for number in 0..5_u8 {
        let data = [0, 0xff, number];
        let entry = PutRecordsEntry {
            partition_key: Cow::Borrowed(key),
            explicit_hash_key: None,
            data: Payload::Raw(&data),
        };
        let (stream, sequence_number_for_ordering) = (StreamRef::named("orders"), None);
        let request = put_record::Request { stream, entry, sequence_number_for_ordering };
        engine.put_record(&request).unwrap();
    }
    let consumer = Consumer::new("orders", "mailer")
        .with_kinesis(LocalKinesis::new(engine))
        .with_leases(MemoryStore::new())
        .with_clock(Clock::of_runtime(), Rng::seeded(1))
        .on_error(OnError::DeadLetter { attempts: 1, to: park.clone() })
        .each(|_: Delivery| std::future::ready(Err::<(), HandlerError>("nul \0 byte".into())));
    let mut worker = JoinSet::new();
    worker.spawn(consumer.run_until(std::future::pending()));
    for _ in 0..600 {
        let count: Result<i64, _> =
            sqlx::query_scalar("SELECT count(*) FROM parked").fetch_one(&pool).await;
        if count.is_ok_and(|count| count == 5) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    worker.shutdown().await;
    let given = Mutex::new(Vec::new());
    let redriven = park.redrive(|record: Delivery| {
        assert_eq!(record.partition_key.as_str(), key);
        given.lock().unwrap().push(record.data.to_vec());
        std::future::ready(Ok::<(), HandlerError>(()))
    });
    let redriven = redriven.await.unwrap();
    assert_eq!((redriven.done, redriven.left), (5, 0), "{redriven:?}");
    let want: Vec<Vec<u8>> = (0..5).map(|number| vec![0, 0xff, number]).collect();
    assert_eq!(*given.lock().unwrap(), want);
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM parked").fetch_one(&pool).await.unwrap();
    assert_eq!(left, 0);
}
