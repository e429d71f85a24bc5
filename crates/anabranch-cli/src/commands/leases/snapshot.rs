//! Snapshot files: the leases of an application, complete enough to recreate a store.

use super::LeasesOptions;
use super::application::{ApplicationState, StreamRows};
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::output::print_note;
use crate::time_spec;
use anabranch::clock::Clock;
use anabranch::lease::LeaseStore;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Checkpoint, Layout, Lease, PendingCheckpoint, StreamFacts};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Snapshot of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseSnapshotFile {
    pub(crate) application: String,
    pub(crate) layout: SavedLayout,
    pub(crate) taken: String,
    pub(crate) streams: Vec<SavedStream>,
}

/// Layout of the saved rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SavedLayout {
    Native,
    Kcl,
}

/// Saved rows of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedStream {
    pub(crate) stream: String,
    pub(crate) t0_ms: Option<u64>,
    pub(crate) created_ms: Option<u64>,
    pub(crate) first_sync_done: Option<bool>,
    pub(crate) leases: Vec<SavedLease>,
}

/// A saved row. Positions are in the lossless text form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLease {
    pub(crate) shard: String,
    pub(crate) owner: Option<String>,
    pub(crate) term: u64,
    pub(crate) checkpoint: String,
    pub(crate) pending: Option<String>,
    pub(crate) pending_state_base64: Option<String>,
    pub(crate) parents: Vec<String>,
    pub(crate) children: Vec<String>,
    pub(crate) starting_hash_key: Option<String>,
    pub(crate) ending_hash_key: Option<String>,
}

/// Wanted state of a row, independent of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetLease {
    pub(crate) shard: ShardId,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) pending: Option<PendingCheckpoint>,
    pub(crate) parents: Vec<ShardId>,
    pub(crate) children: Vec<ShardId>,
    pub(crate) range: Option<HashRange>,
}

impl LeaseSnapshotFile {
    /// Creates a snapshot of the current state.
    pub(crate) fn of(application: &str, standing: &ApplicationState) -> Self {
        Self::of_streams(application, standing.store.layout(), &standing.streams)
    }

    /// Creates a snapshot of the rows of some streams.
    pub(crate) fn of_streams(application: &str, layout: Layout, streams: &[StreamRows]) -> Self {
        Self {
            application: application.to_owned(),
            layout: match layout {
                Layout::Native => SavedLayout::Native,
                Layout::Kcl => SavedLayout::Kcl,
            },
            taken: time_spec::text(Clock::machine().wall_ms()),
            streams: streams.iter().map(SavedStream::of).collect(),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Writes the snapshot to a new file. On return it is on disk.
    pub(crate) fn write(&self, path: &Path) -> Result<(), CommandFailure> {
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
            file.write_all(self.to_json().as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        };
        write().map_err(|error: std::io::Error| {
            CommandFailure::usage(format!(
                "the snapshot {} can't be written: {error}",
                path.display()
            ))
        })
    }

    /// Writes the snapshot to `path`, or to a new file in the current folder. Returns its path.
    pub(crate) fn write_before_a_change(
        &self,
        path: Option<&Path>,
    ) -> Result<PathBuf, CommandFailure> {
        let path = path.map_or_else(
            || {
                let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
                let name: String = self.application.chars().map(plain).collect();
                let time = self.taken.replace([':', '.'], "-");
                PathBuf::from(format!("{name}-leases-{time}.json"))
            },
            Path::to_owned,
        );
        self.write(&path)?;
        print_note!("the previous leases are saved in {}", path.display());
        Ok(path)
    }

    /// Reads a snapshot file.
    pub(crate) fn read(path: &Path) -> Result<Self, CommandFailure> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| CommandFailure::usage(format!("{name} can't be read: {error}")))?;
        serde_json::from_str(&text).map_err(|error| {
            CommandFailure::usage(format!("{name} is not a lease snapshot: {error}"))
        })
    }
}

impl SavedStream {
    fn of(rows: &StreamRows) -> Self {
        Self {
            stream: rows.stream.to_string(),
            t0_ms: rows.facts.map(|facts| facts.t0_ms),
            created_ms: rows.facts.map(|facts| facts.created_ms),
            first_sync_done: rows.facts.map(|facts| facts.first_sync_done),
            leases: rows.rows.iter().map(SavedLease::of).collect(),
        }
    }

    /// Returns the saved facts of the native layout.
    pub(crate) fn facts(&self) -> Option<StreamFacts> {
        Some(StreamFacts {
            t0_ms: self.t0_ms?,
            created_ms: self.created_ms?,
            first_sync_done: self.first_sync_done?,
        })
    }

    /// Returns the wanted rows.
    pub(crate) fn wanted(&self) -> Result<Vec<TargetLease>, CommandFailure> {
        self.leases.iter().map(SavedLease::wanted).collect()
    }
}

impl SavedLease {
    pub(crate) fn of(lease: &Lease) -> Self {
        let names = |ids: &[ShardId]| ids.iter().map(ToString::to_string).collect();
        let state = lease.pending.as_ref().and_then(|pending| pending.state.as_ref());
        Self {
            shard: lease.key.shard.to_string(),
            owner: lease.owner.as_ref().map(ToString::to_string),
            term: lease.term,
            checkpoint: lease.checkpoint.to_string(),
            pending: lease.pending.as_ref().map(|pending| pending.position.to_string()),
            pending_state_base64: state.map(|s| base64_simd::STANDARD.encode_to_string(s)),
            parents: names(&lease.parents),
            children: names(&lease.children),
            starting_hash_key: lease.range.map(|range| range.start().to_string()),
            ending_hash_key: lease.range.map(|range| range.end().to_string()),
        }
    }

    fn wanted(&self) -> Result<TargetLease, CommandFailure> {
        let wrong = |what: &str, why: &dyn std::fmt::Display| {
            CommandFailure::usage(format!("the {what} of {} can't be read: {why}", self.shard))
        };
        let ids = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        let range = match (&self.starting_hash_key, &self.ending_hash_key) {
            (Some(start), Some(end)) => {
                let start = start.parse().map_err(|why| wrong("first hash key", &why))?;
                let end = end.parse().map_err(|why| wrong("last hash key", &why))?;
                HashRange::new(start, end)
            }
            _ => None,
        };
        let pending = match &self.pending {
            None => None,
            Some(position) => {
                let position = position.parse().map_err(|why| wrong("pending position", &why))?;
                let state = match &self.pending_state_base64 {
                    None => None,
                    Some(coded) => {
                        let state = base64_simd::STANDARD.decode_to_vec(coded);
                        Some(state.map_err(|why| wrong("pending state", &why))?.into())
                    }
                };
                Some(PendingCheckpoint { position, state })
            }
        };
        Ok(TargetLease {
            shard: self.shard.as_str().into(),
            checkpoint: self.checkpoint.parse().map_err(|why| wrong("checkpoint", &why))?,
            pending,
            parents: ids(&self.parents),
            children: ids(&self.children),
            range,
        })
    }
}

impl TargetLease {
    /// Returns the current state of a row.
    pub(crate) fn of(lease: &Lease) -> Self {
        Self {
            shard: lease.key.shard.clone(),
            checkpoint: lease.checkpoint.clone(),
            pending: lease.pending.clone(),
            parents: lease.parents.clone(),
            children: lease.children.clone(),
            range: lease.range,
        }
    }
}

/// Writes all leases to a file.
pub(super) async fn run(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
    file: &Path,
) -> Result<(), CommandFailure> {
    let standing = ApplicationState::read(options, connection).await?;
    standing.require_readable()?;
    let snapshot = LeaseSnapshotFile::of(&options.app, &standing);
    snapshot.write(file)?;
    let count: usize = snapshot.streams.iter().map(|stream| stream.leases.len()).sum();
    print_note!("saved {count} leases in {}", file.display());
    Ok(())
}
