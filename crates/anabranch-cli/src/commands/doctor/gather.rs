//! Collection of facts: the stream, the lease rows, and heartbeats over a lease time.

use super::facts::{DoctorFacts, InterruptedChange, KclFacts};
use crate::commands::leases::{editor, liveness, readable};
use crate::commands::shards::{LeaseLag, lags};
use crate::connection::{AwsClients, KclStreams};
use crate::failure::CommandFailure;
use crate::output::print_note;
use anabranch::clock::Clock;
use anabranch::lease::{AnyStore, LeaseStore};
use anabranch::stream::api::{ReadFrom, ShardFilter, StreamApi};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{KclProbe, Layout, Lease, StreamFacts};
use anabranch_model::lineage::Lineage;
use anabranch_model::retry::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Interval between polls of heartbeats.
const LOOK: Duration = Duration::from_millis(500);

/// Collects all facts.
pub(super) async fn facts(
    aws: &AwsClients,
    stream: &StreamName,
    application: &str,
    store: &AnyStore,
    kcl_table: Option<&str>,
    watch: Duration,
) -> Result<DoctorFacts, CommandFailure> {
    let summary = aws.check_stream(stream).await?;
    let stream = &aws.name_in(store, stream, &summary).await?;
    let first = rows(store, stream).await?;
    let remembered = store.application().await?.streams.get(stream).copied();
    // An interrupted change of leases may have left none.
    if first.is_empty() && remembered.is_none() {
        return Err(CommandFailure::usage(format!(
            "application {application} has no leases on {stream} in this store: check the names \
             and --leases"
        )));
    }
    let survey = store.probe().await?;
    let remembered = remembered.or_else(|| of_kcl(&survey, stream, summary.created_ms));
    let (beats, watched_ms) =
        watch_heartbeats(store, stream, &first, watch, survey.leader.is_some()).await?;
    let later = store.probe().await?;
    let rows = rows(store, stream).await?;
    // The shards are listed after the rows: otherwise a shard that ended meanwhile would look open.
    let list = || aws.kinesis.list_shards(stream, ShardFilter::All);
    let lineage = Lineage::new(aws.ask(stream, list).await?.shards);
    let lags = lags(&aws.kinesis, &lineage, &rows).await;
    let workers = store.poll().await?.workers;
    let alive = workers.iter().filter(|worker| worker.is_alive());
    let left = alive.clone().filter(|worker| editor::is(&worker.id));
    let unfinished = left
        .map(|it| InterruptedChange { command: it.host.clone(), began_ms: it.started_ms })
        .collect();
    let mut kcl = KclFacts { unreadable: later.unreadable.clone(), ..KclFacts::default() };
    if let Some(table) = kcl_table {
        table.clone_into(&mut kcl.table);
        kcl.orphaned = orphaned(aws, table, &survey.counters, &later.counters).await;
    }
    let moved = survey.leader != later.leader;
    kcl.leader = later.leader.map(|leader| (leader, moved));
    Ok(DoctorFacts {
        stream: stream.clone(),
        application: application.to_owned(),
        fan_out: fan_out(aws, &summary.arn).await,
        denied: denied(aws, stream, &lineage, &lags).await,
        summary,
        lineage,
        layout: store.layout(),
        remembered,
        rows,
        lags,
        watched_ms,
        beats,
        workers: alive.filter(|w| !editor::is(&w.id)).map(|w| w.id.to_string()).collect(),
        unfinished,
        options: String::new(),
        kcl,
    })
}

/// Returns the creation time of the stream according to a KCL table for several streams. The table
/// stores whole seconds.
fn of_kcl(survey: &KclProbe, stream: &StreamName, created_ms: u64) -> Option<StreamFacts> {
    let streams = KclStreams::of(survey);
    let (_, id) = streams.find(stream.as_str())?;
    let same = id.created_s() == created_ms / 1_000;
    let created_ms = if same { created_ms } else { id.created_s() * 1_000 };
    Some(StreamFacts { t0_ms: created_ms, created_ms, first_sync_done: true })
}

async fn rows(
    store: &AnyStore,
    stream: &StreamName,
) -> Result<BTreeMap<ShardId, Lease>, CommandFailure> {
    let rows = readable(store.list(stream).await?);
    Ok(rows.into_iter().map(|row| (row.key.shard.clone(), row)).collect())
}

/// Watches until every worker showed a heartbeat or the time is over. The time is `watch`, or the
/// longer lease time in the row of a silent worker. A KCL 3.x leader's heartbeat is far slower, so
/// with a leader the whole time is used.
async fn watch_heartbeats(
    store: &AnyStore,
    stream: &StreamName,
    rows: &BTreeMap<ShardId, Lease>,
    watch: Duration,
    leader: bool,
) -> Result<(BTreeMap<ShardId, bool>, u64), CommandFailure> {
    let streams = [stream.clone()];
    let heart = |row: &Lease| {
        row.owner.as_ref().map(|owner| match store.layout() {
            Layout::Native => owner.to_string(),
            Layout::Kcl => format!("{owner} ({})", row.key.shard),
        })
    };
    let owned: BTreeMap<&ShardId, String> = rows
        .iter()
        .filter(|(_, row)| !row.is_ended())
        .filter_map(|(shard, row)| Some((shard, heart(row)?)))
        .collect();
    let (first, unreadable) = liveness::heartbeats(store, &streams).await?;
    for row in unreadable {
        print_note!(
            "the row of worker {} can't be read, so its leases can't be taken over: {}: repair the \
             row, or delete it if the worker is dead",
            row.key,
            row.why
        );
    }
    let clock = Clock::machine();
    let began_ms = clock.now_ms();
    let patience = |name: &String| first.get(name).map_or(watch, |heart| heart.watch_time(watch));
    let mut beating: BTreeSet<String> = BTreeSet::new();
    if !owned.is_empty() || leader {
        let longest = owned.values().map(patience).fold(watch, Duration::max);
        print_note!("watching heartbeats for up to {longest:?} …");
    }
    loop {
        let silent = owned.values().filter(|name| !beating.contains(*name)).map(patience);
        let Some(patience) = silent.chain(leader.then_some(watch)).max() else { break };
        if u128::from(clock.now_ms() - began_ms) >= patience.as_millis() {
            break;
        }
        tokio::time::sleep(LOOK).await;
        let (now, _) = liveness::heartbeats(store, &streams).await?;
        beating.extend(liveness::moved(&first, &now).into_iter().map(str::to_owned));
    }
    let beats = owned.iter().map(|(shard, name)| ((*shard).clone(), beating.contains(name)));
    Ok((beats.collect(), clock.now_ms() - began_ms))
}

/// Returns leases of a KCL 3.x table with a handover mark whose counters did not move.
async fn orphaned(
    aws: &AwsClients,
    table: &str,
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> BTreeMap<String, String> {
    let client = aws_sdk_dynamodb::Client::new(&aws.config);
    let mut marked = BTreeMap::new();
    let mut next = None;
    loop {
        let scan = client
            .scan()
            .table_name(table)
            .filter_expression("attribute_exists(checkpointOwner)")
            .set_exclusive_start_key(next);
        // An earlier probe could read the table, so a failure here is transient.
        let Ok(page) = scan.send().await else { return marked };
        for item in page.items() {
            let text = |name: &str| item.get(name).and_then(|v| v.as_s().ok()).cloned();
            if let (Some(key), Some(owner)) = (text("leaseKey"), text("checkpointOwner"))
                && before.get(&key) == after.get(&key)
            {
                marked.insert(key, owner);
            }
        }
        next = page.last_evaluated_key;
        if next.is_none() {
            return marked;
        }
    }
}

async fn fan_out(aws: &AwsClients, arn: &str) -> Option<usize> {
    let client = aws_sdk_kinesis::Client::new(&aws.config);
    let reply =
        client.list_stream_consumers().stream_arn(arn).max_results(100).send().await.ok()?;
    Some(reply.consumers().len())
}

/// Returns the denied calls of a reader.
async fn denied(
    aws: &AwsClients,
    stream: &StreamName,
    lineage: &Lineage,
    lags: &BTreeMap<ShardId, LeaseLag>,
) -> BTreeSet<String> {
    let mut denied = BTreeSet::new();
    for lag in lags.values() {
        if let LeaseLag::Unknown(why) = lag
            && why.contains("AccessDenied")
        {
            let operation = why.split(' ').next().unwrap_or("GetRecords");
            denied.insert(format!("kinesis:{operation}"));
        }
    }
    if let Some(shard) = lineage.open_shards().next() {
        let iterator = aws.kinesis.iterator(stream, &shard.id, ReadFrom::Latest).await;
        let read = match iterator {
            Ok(iterator) => aws.kinesis.records(stream, &iterator, 1).await.err(),
            Err(error) => Some(error),
        };
        if let Some(error) = read.filter(|error| error.fault == Fault::AccessDenied) {
            denied.insert(format!("kinesis:{}", error.operation));
        }
    }
    denied
}
