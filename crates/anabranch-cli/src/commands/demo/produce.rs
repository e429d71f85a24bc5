//! Puts numbered records of each key, in order: a key is at most once in a request, and the next
//! request waits for the reply, so a refused record can't be overtaken.

use super::Options;
use super::stream::Stream;
use crate::failure::Failure;
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::PutRecordsRequestEntry;
use std::time::Duration;

/// One record: its key's number and its number within the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) key: u32,
    pub(super) number: u64,
}

impl Item {
    /// The payload of this record.
    fn payload(self) -> String {
        format!("{}:{}", self.key, self.number)
    }

    /// Reads a payload back.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let (key, number) = std::str::from_utf8(payload).ok()?.split_once(':')?;
        Some(Self { key: key.parse().ok()?, number: number.parse().ok()? })
    }
}

/// Puts as many records as the time holds at the rate. Gives those that the stream accepted, in order.
pub(super) async fn run(stream: &Stream, options: &Options) -> Result<Vec<Item>, Failure> {
    let round = Duration::from_secs_f64(f64::from(options.keys) / f64::from(options.rate));
    let rounds = options.seconds * u64::from(options.rate) / u64::from(options.keys);
    let mut ticks = tokio::time::interval(round);
    let mut accepted = Vec::new();
    for number in 0..rounds.max(1) {
        ticks.tick().await;
        let mut waiting: Vec<Item> = (0..options.keys).map(|key| Item { key, number }).collect();
        while !waiting.is_empty() {
            let outcomes = stream.put(entries(&waiting)?).await?;
            let (placed, refused) =
                sort_out(&waiting, outcomes.iter().map(|o| o.error_code().is_none()));
            accepted.extend(placed);
            waiting = refused;
        }
    }
    Ok(accepted)
}

fn entries(items: &[Item]) -> Result<Vec<PutRecordsRequestEntry>, Failure> {
    let entry = |item: &Item| {
        let key = format!("customer-{}", item.key);
        let data = Blob::new(item.payload());
        PutRecordsRequestEntry::builder().partition_key(key).data(data).build()
    };
    items.iter().map(entry).collect::<Result<_, _>>().map_err(Failure::result)
}

/// Parts the items of a request into those placed and those refused.
fn sort_out(items: &[Item], placed: impl Iterator<Item = bool>) -> (Vec<Item>, Vec<Item>) {
    let both: Vec<(Item, bool)> = items.iter().copied().zip(placed).collect();
    let of = |wanted: bool| both.iter().filter(|(_, p)| *p == wanted).map(|(i, _)| *i).collect();
    (of(true), of(false))
}
