//! Reads every shard, each only after its parents have ended.

use super::produce::Item;
use super::stream::Stream;
use crate::failure::Failure;
use anabranch_model::ids::ShardId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;

/// Pause between two rounds over all shards.
const PAUSE: Duration = Duration::from_millis(100);

/// What is read and what has ended.
#[derive(Default)]
struct Follower {
    /// Iterators of the shards being read.
    reading: BTreeMap<ShardId, String>,
    /// Shards read to their end.
    ended: BTreeSet<ShardId>,
    /// Everything delivered, in order of delivery.
    delivered: Vec<Item>,
}

/// Follows the stream until as much was delivered as the producer says it put, or until patience
/// is over. Gives the deliveries in order.
pub(super) async fn run(
    stream: &Stream,
    finished: watch::Receiver<Option<usize>>,
    patience: Duration,
) -> Result<Vec<Item>, Failure> {
    let mut follower = Follower::default();
    let mut rounds_left = patience.as_millis() / PAUSE.as_millis();
    loop {
        follower.start_what_may_start(stream).await?;
        follower.read_once(stream).await?;
        if let Some(put) = *finished.borrow() {
            if follower.delivered.len() >= put || rounds_left == 0 {
                return Ok(follower.delivered);
            }
            rounds_left -= 1;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Follower {
    async fn start_what_may_start(&mut self, stream: &Stream) -> Result<(), Failure> {
        let lineage = stream.lineage().await?;
        for shard in lineage.startable(|id| self.ended.contains(id)) {
            if !self.reading.contains_key(&shard.id)
                && let Some(iterator) = stream.oldest(&shard.id).await?
            {
                say!("reading  {}", shard.id);
                self.reading.insert(shard.id.clone(), iterator);
            }
        }
        Ok(())
    }

    async fn read_once(&mut self, stream: &Stream) -> Result<(), Failure> {
        for (shard, iterator) in std::mem::take(&mut self.reading) {
            let reply = stream.read(&iterator).await?;
            for record in reply.records() {
                let item = Item::read(record.data().as_ref());
                let item = item.ok_or_else(|| Failure::result("a record that nobody put"))?;
                self.delivered.push(item);
            }
            if let Some(next) = reply.next_shard_iterator {
                self.reading.insert(shard, next);
            } else {
                say!("ended    {shard}");
                self.ended.insert(shard);
            }
        }
        Ok(())
    }
}
