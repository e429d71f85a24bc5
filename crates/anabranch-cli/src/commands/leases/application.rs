//! Everything that a store keeps for an application.

use super::Options;
use crate::connection::Connection;
use crate::failure::Failure;
use anabranch::lease::{AnyStore, LeaseStore};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Layout, Lease, StreamFacts, Worker};
use std::collections::BTreeMap;

/// The rows of one stream, and what the application remembers of it.
#[derive(Debug, Clone)]
pub(crate) struct StreamRows {
    /// The stream. In KCL's table it is as good as it was told.
    pub(crate) stream: StreamName,
    /// What the native layout remembers.
    pub(crate) facts: Option<StreamFacts>,
    /// The rows, by shard.
    pub(crate) rows: Vec<Lease>,
}

/// An application as it stands.
pub(crate) struct Standing {
    /// Where it is kept.
    pub(crate) store: AnyStore,
    /// Its streams.
    pub(crate) streams: Vec<StreamRows>,
    /// Its workers. KCL's layout has no rows for them.
    pub(crate) workers: Vec<Worker>,
}

impl Standing {
    /// Reads the application that the options name. One without leases is a mistake.
    pub(super) async fn read(options: &Options, connection: &Connection) -> Result<Self, Failure> {
        let store = connection.existing_leases(&options.app).await?;
        let standing = Self::of(store, options.stream.as_deref(), &options.app).await?;
        if standing.streams.iter().all(|stream| stream.rows.is_empty()) {
            return Err(Failure::usage(format!(
                "there are no leases of application {} there: check its name and --leases{}",
                options.app,
                standing.other_mode().await
            )));
        }
        Ok(standing)
    }

    /// Reads an application, which may have nothing.
    pub(super) async fn of(
        store: AnyStore,
        stream: Option<&str>,
        application: &str,
    ) -> Result<Self, Failure> {
        let known = store.application().await?.streams;
        let mut streams: Vec<(StreamName, Option<StreamFacts>)> = match (store.layout(), stream) {
            // The table does not name its stream, so any name finds the rows.
            (Layout::Kcl, name) => vec![(name.unwrap_or(application).into(), None)],
            (Layout::Native, Some(name)) => {
                let name = StreamName::from(name);
                let facts = known.get(&name).copied();
                vec![(name, facts)]
            }
            (Layout::Native, None) => {
                known.into_iter().map(|(name, facts)| (name, Some(facts))).collect()
            }
        };
        let mut read = Vec::new();
        for (stream, facts) in streams.drain(..) {
            let rows = store.list(&stream).await?;
            read.push(StreamRows { stream, facts, rows });
        }
        let workers = store.look().await?.workers;
        Ok(Self { store, streams: read, workers })
    }

    /// A word about a table that looks empty because it is one for several streams.
    async fn other_mode(&self) -> &'static str {
        match self.store.survey().await {
            Ok(survey) if survey.of_other_mode > 0 => {
                " (the table is that of a KCL application for several streams, which this command \
                 can't read)"
            }
            _ => "",
        }
    }

    /// The one stream that the options mean.
    pub(super) fn only_stream(self, options: &Options) -> Result<(AnyStore, StreamRows), Failure> {
        if self.store.layout() == Layout::Kcl && options.stream.is_none() {
            return Err(Failure::usage(
                "the table of a KCL application does not name its stream: give it with --stream",
            ));
        }
        let mut streams = self.streams;
        if streams.len() == 1 {
            return Ok((self.store, streams.remove(0)));
        }
        let names: Vec<_> = streams.iter().map(|s| s.stream.to_string()).collect();
        Err(Failure::usage(format!(
            "application {} reads several streams, {}: choose one with --stream",
            options.app,
            names.join(", ")
        )))
    }
}

impl StreamRows {
    /// The rows by shard.
    pub(super) fn by_shard(&self) -> BTreeMap<ShardId, Lease> {
        self.rows.iter().map(|row| (row.key.shard.clone(), row.clone())).collect()
    }

    /// The row of a shard that a person named, by its id or its number.
    pub(super) fn named(&self, shard: &str) -> Result<&Lease, Failure> {
        let id = shard_id(shard);
        let found = self.rows.iter().find(|row| row.key.shard == id);
        found.ok_or_else(|| {
            let names: Vec<_> = self.rows.iter().map(|row| row.key.shard.to_string()).collect();
            Failure::usage(format!("there is no lease of {id}: there are {}", names.join(", ")))
        })
    }
}

/// A shard by its id, or by the number in it.
pub(super) fn shard_id(text: &str) -> ShardId {
    text.parse().map_or_else(|_| text.into(), ShardId::from_index)
}
