//! Cost of single calls on a store with the rows of a whole fleet: time on every store, and
//! capacity units on DynamoDB.

use crate::fleet::STREAM;
use crate::{LEASES, WORKERS};
use anabranch::clock::Rng;
use anabranch::lease::stores::dynamodb::StoreUsage;
use anabranch::lease::{LeaseStore, StoreError};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{
    Checkpoint, Lease, LeaseKey, LeaseToken, NewLease, Nonce, WorkerChange, WorkerId, Write,
};
use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Number of times that each call is made. The median time is reported.
const TIMES: u64 = 20;
/// Number of rows that are created concurrently.
const AT_ONCE: usize = 16;

/// Cost of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    time: Duration,
    /// Capacity units per call, 0 if the store does not count them.
    pub(crate) units: f64,
}

/// Costs of all measured calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) look: Cost,
    pub(crate) list: Cost,
    pub(crate) beat: Cost,
    checkpoint: Cost,
    take: Cost,
}

pub(crate) fn head() {
    println!("\nOne call on a table of {WORKERS} workers and {LEASES} leases, median of {TIMES}");
    println!(
        "{:<16}{:>18}{:>18}{:>18}{:>18}{:>18}",
        "store", "look", "list", "beat", "checkpoint", "take"
    );
}

/// Fills a store with the rows of a whole fleet, and measures it.
pub(crate) async fn run<S: LeaseStore>(
    name: &str,
    store: S,
    usage: Option<fn(&S) -> StoreUsage>,
) -> Result<Costs, String> {
    let meter = Meter { store: Arc::new(store), usage, chance: Rng::of_system() };
    let costs = meter.all().await.map_err(|error| error.to_string())?;
    let cell = |cost: Cost, unit: &str| {
        let ms = cost.time.as_secs_f64() * 1e3;
        let units = usage.map_or_else(String::new, |_| format!(" = {} {unit}", cost.units));
        format!("{ms:.1} ms{units}")
    };
    println!(
        "{name:<16}{:>18}{:>18}{:>18}{:>18}{:>18}",
        cell(costs.look, "RU"),
        cell(costs.list, "RU"),
        cell(costs.beat, "WU"),
        cell(costs.checkpoint, "WU"),
        cell(costs.take, "WU"),
    );
    Ok(costs)
}

/// Makes calls and measures their cost.
struct Meter<S> {
    store: Arc<S>,
    usage: Option<fn(&S) -> StoreUsage>,
    chance: Rng,
}

impl<S: LeaseStore> Meter<S> {
    async fn all(&self) -> Result<Costs, StoreError> {
        let stream = STREAM.into();
        self.fill().await?;
        let rows = self.store.list(&stream).await?.rows;
        let (store, chance) = (&self.store, &self.chance);
        let look = self.cost(|_| async { store.poll().await.map(drop) }).await?;
        let list = self.cost(|_| async { store.list(&stream).await.map(drop) }).await?;

        let id = WorkerId::of_join("meter", chance.bits());
        self.write(Write::worker(&id, join(), chance.nonce())).await?;
        let beat = |counter| {
            self.write(Write::worker(&id, WorkerChange::Beat { counter }, chance.nonce()))
        };
        let beat = self.cost(beat).await?;

        let hold = rows.first().and_then(Lease::token).expect("the fleet took every lease");
        let checkpoint =
            |n| self.write(hold.checkpoint(position(n + 1), position(n + 2), None, chance.nonce()));
        let checkpoint = self.cost(checkpoint).await?;
        let take = |n| {
            let mut hold = hold.clone();
            hold.term += n;
            self.write(hold.retake(chance.nonce()))
        };
        let take = self.cost(take).await?;
        Ok(Costs { look, list, beat, checkpoint, take })
    }

    /// Creates the rows of a fleet: workers, and leases that they own. Each row has a checkpoint
    /// like a real one, because the price of a list depends on its bytes.
    async fn fill(&self) -> Result<(), StoreError> {
        self.store.prepare().await?;
        let mut owners = Vec::new();
        for i in 0..WORKERS {
            let id = WorkerId::of_join(&format!("worker-{i}"), self.chance.bits());
            self.write(Write::worker(&id, join(), self.chance.nonce())).await?;
            owners.push(id);
        }
        let ranges = HashRange::divide_all(u32::try_from(LEASES).expect("a small count"));
        let mut rows = JoinSet::new();
        for (i, range) in ranges.into_iter().enumerate() {
            if rows.len() >= AT_ONCE {
                rows.join_next().await.transpose().expect("no write panics").transpose()?;
            }
            let shard = ShardId::from_index(u32::try_from(i).expect("a small count"));
            let checkpoint = Position::TrimHorizon;
            let new = NewLease { shard, parents: Vec::new(), range, checkpoint };
            let (store, owner) = (self.store.clone(), owners[i % WORKERS].clone());
            let nonces = [(); 3].map(|()| self.chance.nonce());
            rows.spawn(async move { own(&*store, new, owner, nonces).await });
        }
        rows.join_all().await.into_iter().collect()
    }

    async fn write(&self, write: Write) -> Result<(), StoreError> {
        let outcome = self.store.write(&write).await?;
        assert!(outcome.is_done(), "{write:?}: {outcome:?}");
        Ok(())
    }

    async fn cost<F>(&self, call: impl Fn(u64) -> F) -> Result<Cost, StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let before = self.units();
        let mut times = Vec::new();
        for n in 0..TIMES {
            let begin = Instant::now();
            call(n).await?;
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        let used = self.units() - before;
        Ok(Cost { time: times[times.len() / 2], units: per_call(used) })
    }

    /// Returns the read and write units used so far. No measured call uses both, except a take,
    /// which reads its row after the transaction.
    fn units(&self) -> f64 {
        let usage = self.usage.map(|of| of(&self.store)).unwrap_or_default();
        usage.read_units + usage.write_units
    }
}

/// Returns a join of typical size.
fn join() -> WorkerChange {
    WorkerChange::Join {
        host: "host-12.example.internal".into(),
        started_ms: 1_700_000_000_000,
        reads: Some(vec![STREAM.into()]),
        lease_time_ms: Some(10_000),
    }
}

/// Creates a lease that `owner` has taken and checkpointed.
async fn own<S: LeaseStore>(
    store: &S,
    new: NewLease,
    owner: WorkerId,
    [create, take, checkpoint]: [Nonce; 3],
) -> Result<(), StoreError> {
    let key = LeaseKey { stream: STREAM.into(), shard: new.shard.clone() };
    let create = new.create(&key.stream, create);
    let hold = LeaseToken { key, owner, term: 0 };
    let take = hold.retake(take);
    let hold = LeaseToken { term: 1, ..hold };
    let (from, to) = (Position::TrimHorizon.into(), position(1));
    let checkpoint = hold.checkpoint_at_rate(from, to, None, Some(65_536), checkpoint);
    for write in [create, take, checkpoint] {
        let outcome = store.write(&write).await?;
        assert!(outcome.is_done(), "{write:?}: {outcome:?}");
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a small count")]
fn per_call(units: f64) -> f64 {
    (units / TIMES as f64 * 10.0).round() / 10.0
}

fn position(n: u64) -> Checkpoint {
    let sequence: SequenceNumber = format!("49590338271490256608559692538361571095921575{n:012}")
        .parse()
        .expect("56 digits are a sequence number");
    Checkpoint::at(Position::At { sequence, sub: 0 })
}
