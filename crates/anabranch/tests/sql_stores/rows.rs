//! Rows as an operator sees them.

use crate::postgres_server::Server;
use crate::steps::{at, done, join, key, owned, start};
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore, StoreError};
use anabranch_model::lease::{Checkpoint, Nonce};

#[tokio::test]
async fn an_operator_can_read_the_rows_and_what_others_add_to_them_stays() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    let store = PostgresStore::connect(&url, "app").unwrap();
    store.prepare().await.unwrap();
    server.sql(database, "ALTER TABLE anabranch.lease ADD COLUMN note text DEFAULT 'mine'");
    let hold = owned(&store, 3).await;
    let lanes = [at(5), at(9)].map(|lane| lane.lowest());
    let two = Checkpoint::of_lanes(lanes.to_vec()).unwrap();
    done(&store, &hold.checkpoint(start(), two.clone(), None, Nonce(9))).await;
    let shown = server.sql(
        database,
        "SELECT application, stream, shard, owner, term, completed, checkpoint, note, \
         updated_at > now() - interval '1 hour' FROM anabranch.lease",
    );
    let checkpoint = two.to_string();
    let row = format!("app|orders|shardId-000000000003|a|1|f|{checkpoint}|mine|t");
    assert_eq!(shown, row);
    server.sql(database, "UPDATE anabranch.lease SET checkpoint = 'soon'");
    let error = store.get(&key(3)).await.unwrap_err();
    assert!(matches!(error, StoreError::UnreadableRow { .. }), "{error:?}");
    let text = error.to_string();
    for word in ["orders/shardId-000000000003", "checkpoint", "\"soon\""] {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
}

async fn apart<S: LeaseStore>(one: &S, other: &S) {
    one.prepare().await.unwrap();
    other.prepare().await.unwrap();
    owned(one, 0).await;
    done(one, &join("a")).await;
    let look = other.poll().await.unwrap();
    assert_eq!((look.version, look.workers), (Some(0), vec![]));
    assert_eq!(other.list(&key(0).stream).await.unwrap().rows, vec![]);
    assert_eq!(other.get(&key(0)).await.unwrap(), None);
    owned(other, 0).await;
    assert_eq!(one.poll().await.unwrap().version, Some(3));
    assert_eq!(other.poll().await.unwrap().version, Some(2));
}

#[tokio::test]
async fn applications_in_one_database_do_not_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let open = |application: &str| SqliteStore::open(&path, application).unwrap();
    apart(&open("one"), &open("other")).await;
    let prefixed = |prefix: &str| open("app").with_table_prefix(prefix).unwrap();
    apart(&prefixed("p"), &prefixed("q_")).await;

    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let connect = |application: &str| PostgresStore::connect(&url, application).unwrap();
    apart(&connect("one"), &connect("other")).await;
    let schema = |schema: &str| connect("app").with_schema(schema).unwrap();
    apart(&schema("my \"schema\"; --"), &schema("Other")).await;
}
