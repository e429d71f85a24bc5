//! State that a lease store keeps for an application.

use super::LeasesOptions;
use crate::connection::{ConnectionSettings, KclStreams};
use crate::failure::CommandFailure;
use crate::output::print_note;
use anabranch::lease::{AnyStore, LeaseStore};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseListing, StreamFacts, WorkerRow,
};
use std::collections::BTreeMap;

/// Returns the rows of a listing, and prints the unreadable ones to standard error.
pub(crate) fn readable(listing: LeaseListing) -> Vec<Lease> {
    for row in listing.unreadable {
        print_note!("the row of {} can't be read and is omitted: {}", row.key, row.why);
    }
    listing.rows
}

/// The lease rows of one stream, and the facts stored about it.
#[derive(Debug, Clone)]
pub(crate) struct StreamRows {
    /// Stream name. For a KCL table of a single stream it is the name given by the user.
    pub(crate) stream: StreamName,
    /// Facts that the native layout stores.
    pub(crate) facts: Option<StreamFacts>,
    pub(crate) rows: Vec<Lease>,
}

/// The current state of an application.
pub(crate) struct ApplicationState {
    pub(crate) store: AnyStore,
    /// True if the store identifies its streams. The table of a KCL application for a single stream
    /// does not.
    pub(crate) names_streams: bool,
    pub(crate) streams: Vec<StreamRows>,
    /// Worker rows. KCL's layout has none.
    pub(crate) workers: Vec<WorkerRow>,
    /// True if lease rows were skipped because they can't be read.
    unreadable: bool,
}

impl ApplicationState {
    /// Reads the application that the options name. Returns an error if it has no leases.
    pub(super) async fn read(
        options: &LeasesOptions,
        connection: &ConnectionSettings,
    ) -> Result<Self, CommandFailure> {
        let standing = Self::read_any(options, connection).await?;
        if standing.store.layout() == Layout::Kcl && standing.has_no_rows() {
            return Err(standing.nothing(options));
        }
        Ok(standing)
    }

    /// Reads the application for a change of leases, which resumes an interrupted change that had
    /// removed all leases. In KCL's layout, a table without leases is therefore accepted.
    pub(super) async fn read_any(
        options: &LeasesOptions,
        connection: &ConnectionSettings,
    ) -> Result<Self, CommandFailure> {
        let store = connection.existing_leases(&options.app, options.stream.as_deref()).await?;
        let standing = Self::of(store, options.stream.as_deref(), &options.app).await?;
        let remembered = standing.streams.iter().any(|stream| stream.facts.is_some());
        if standing.store.layout() == Layout::Native && standing.has_no_rows() && !remembered {
            return Err(standing.nothing(options));
        }
        Ok(standing)
    }

    fn has_no_rows(&self) -> bool {
        self.streams.iter().all(|stream| stream.rows.is_empty())
    }

    fn nothing(&self, options: &LeasesOptions) -> CommandFailure {
        let names: Vec<_> = self.streams.iter().map(|s| s.stream.to_string()).collect();
        let stream = match (&options.stream, names.as_slice()) {
            (Some(_), [name]) => format!(" on stream {name}"),
            _ => String::new(),
        };
        CommandFailure::usage(format!(
            "application {} has no leases{stream} in this store: check its name and --leases",
            options.app,
        ))
    }

    /// Reads an application, which may have no leases.
    pub(super) async fn of(
        store: AnyStore,
        stream: Option<&str>,
        application: &str,
    ) -> Result<Self, CommandFailure> {
        let ApplicationFacts { streams: known, unreadable: odd, .. } = store.application().await?;
        let several = match store.layout() {
            Layout::Kcl => KclStreams::of(&store.probe().await?),
            Layout::Native => KclStreams::default(),
        };
        let mut streams: Vec<(StreamName, Option<StreamFacts>)> = match (store.layout(), stream) {
            // The table of a single stream does not name it, so any name finds the rows.
            (Layout::Kcl, name) if several.is_empty() => {
                vec![(name.unwrap_or(application).into(), None)]
            }
            (Layout::Kcl, None) => several.names().map(|name| (name.clone(), None)).collect(),
            (Layout::Kcl, Some(name)) => {
                let found =
                    several.find(name).map_or_else(|| name.into(), |(name, _)| name.clone());
                vec![(found, None)]
            }
            (Layout::Native, Some(name)) => {
                let name = known_as(&known, &StreamName::from(name));
                let facts = known.get(&name).copied();
                vec![(name, facts)]
            }
            (Layout::Native, None) => {
                known.into_iter().map(|(name, facts)| (name, Some(facts))).collect()
            }
        };
        for stream in &odd {
            let (name, why) = (&stream.key, &stream.why);
            print_note!("the row of stream {name} can't be read and is omitted: {why}");
        }
        let (mut read, mut unreadable) = (Vec::new(), !odd.is_empty());
        for (stream, facts) in streams.drain(..) {
            let listing = store.list(&stream).await?;
            unreadable |= !listing.unreadable.is_empty();
            let rows = readable(listing);
            read.push(StreamRows { stream, facts, rows });
        }
        let look = store.poll().await?;
        for row in look.unreadable {
            print_note!("the row of worker {} can't be read and is omitted: {}", row.key, row.why);
        }
        let workers = look.workers;
        let names_streams = store.layout() == Layout::Native || !several.is_empty();
        Ok(Self { store, names_streams, streams: read, workers, unreadable })
    }

    /// Returns the lease of a shard that the user named, in any of the streams.
    pub(super) fn named(&self, shard: &str) -> Result<&Lease, CommandFailure> {
        let mut found = self.streams.iter().filter_map(|stream| stream.named(shard).ok());
        match (found.next(), found.next()) {
            (Some(row), None) => Ok(row),
            (Some(one), Some(other)) => Err(CommandFailure::usage(format!(
                "streams {} and {} both have a shard {}: choose one with --stream",
                one.key.stream, other.key.stream, one.key.shard
            ))),
            (None, _) => {
                let first = self.streams.first();
                first.map_or(Err(CommandFailure::usage("there are no leases")), |rows| {
                    rows.named(shard)
                })
            }
        }
    }

    /// Returns an error if a lease row can't be read, because a copy would lack it.
    pub(super) fn require_readable(&self) -> Result<(), CommandFailure> {
        if self.unreadable {
            return Err(CommandFailure::result(
                "lease rows can't be read, and a copy would lack them: repair or delete them first",
            ));
        }
        Ok(())
    }

    /// Returns an error if the stream is unknown.
    pub(super) fn require_stream_name(
        &self,
        options: &LeasesOptions,
    ) -> Result<(), CommandFailure> {
        if self.names_streams || options.stream.is_some() {
            return Ok(());
        }
        Err(CommandFailure::usage(
            "the table of a KCL application does not name its stream: give it with --stream",
        ))
    }

    /// Returns the single stream that the options select.
    pub(super) fn only_stream(
        self,
        options: &LeasesOptions,
    ) -> Result<(AnyStore, StreamRows), CommandFailure> {
        self.require_stream_name(options)?;
        let mut streams = self.streams;
        if streams.len() == 1 {
            return Ok((self.store, streams.remove(0)));
        }
        let names: Vec<_> = streams.iter().map(|s| s.stream.to_string()).collect();
        Err(CommandFailure::usage(format!(
            "application {} reads several streams, {}: choose one with --stream",
            options.app,
            names.join(", ")
        )))
    }
}

impl StreamRows {
    /// Returns the rows by shard.
    pub(super) fn by_shard(&self) -> BTreeMap<ShardId, Lease> {
        self.rows.iter().map(|row| (row.key.shard.clone(), row.clone())).collect()
    }

    /// Returns the lease of a shard that the user named by id or number.
    pub(super) fn named(&self, shard: &str) -> Result<&Lease, CommandFailure> {
        let id = shard_id(shard);
        let found = self.rows.iter().find(|row| row.key.shard == id);
        found.ok_or_else(|| {
            let names: Vec<_> = self.rows.iter().map(|row| row.key.shard.to_string()).collect();
            CommandFailure::usage(format!(
                "there is no lease of {id}; existing leases: {}",
                names.join(", ")
            ))
        })
    }
}

/// Parses a shard id, or the number in it.
pub(super) fn shard_id(text: &str) -> ShardId {
    text.parse().map_or_else(|_| text.into(), ShardId::from_index)
}

/// Returns the name under which an application knows a stream given by name or ARN. If that matches
/// two of its streams or none, the name is returned unchanged.
fn known_as(known: &BTreeMap<StreamName, StreamFacts>, given: &StreamName) -> StreamName {
    if known.contains_key(given) {
        return given.clone();
    }
    let other = given.in_arn();
    let is_it = |name: &&StreamName| match &other {
        Some(plain) => *name == plain,
        None => name.in_arn().as_ref() == Some(given),
    };
    let mut found = known.keys().filter(is_it);
    match (found.next(), found.next()) {
        (Some(name), None) => name.clone(),
        _ => given.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_found_by_its_name_and_by_its_arn() {
        let arn = |account| format!("arn:aws:kinesis:eu-west-1:{account}:stream/orders");
        let (ours, theirs) = (arn("111111111111"), arn("222222222222"));
        for (known, given, found) in [
            (vec!["orders"], "orders", "orders"),
            (vec!["orders"], ours.as_str(), "orders"),
            (vec![ours.as_str()], "orders", ours.as_str()),
            (vec!["orders", theirs.as_str()], "orders", "orders"),
            (vec!["orders", theirs.as_str()], theirs.as_str(), theirs.as_str()),
            (vec![ours.as_str(), theirs.as_str()], "orders", "orders"),
            (vec!["mails"], "orders", "orders"),
        ] {
            let facts = StreamFacts { t0_ms: 0, created_ms: 0, first_sync_done: true };
            let streams = known.iter().map(|name| (StreamName::from(*name), facts)).collect();
            assert_eq!(known_as(&streams, &given.into()).as_str(), found, "{given} of {known:?}");
        }
    }
}
