//! `anabranch local`: a local stream in its own process.

mod ready;
mod tls;

use self::tls::{CaFile, TlsOptions};
use crate::failure::CommandFailure;
use crate::output::print_note;
use anabranch_local::persist::{Fsync, JournalOptions};
use anabranch_local::{Clock, Engine, EngineOptions, Local, LocalStartError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Options of `anabranch local`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
The command prints the variables that point any AWS SDK at it. DynamoDB is on the same port.
Faults, limits and resharding at run time: docs/local.md, \"Control endpoint\".")]
pub(crate) struct LocalOptions {
    /// Port to listen on; 0 selects a free one
    #[arg(long, default_value_t = 4567, env = "ANABRANCH_LOCAL_PORT")]
    port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    #[command(flatten)]
    tls: TlsOptions,
    /// Maximum concurrent HTTP/2 streams per connection
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_concurrent_streams: u32,
    /// Folder for persistent data; without it, data is kept in memory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Journal sync policy: always (before each reply), interval:MILLISECONDS or never. A killed
    /// process loses nothing with any of them; they differ only on a power failure
    #[arg(long, value_name = "POLICY", default_value = "interval:1000", requires = "data")]
    fsync: Fsync,
    /// Memory limit for records, such as 512MiB. Puts beyond it fail as throttled until retention
    /// has freed memory. Default: no limit
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    max_memory: Option<usize>,
    /// Client timeout in seconds: for the head of a request, for more of its body, or for the
    /// client to accept more of a reply
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    client_timeout: u64,
    /// Enforce the Kinesis rates: 1 MiB/s and 1,000 records/s in, 5 calls/s and 2 MB/s out, per
    /// shard
    #[arg(long)]
    enforce_limits: bool,
    /// Create a stream at startup, such as orders:4; may be repeated
    #[arg(long = "stream", value_name = "NAME[:SHARDS]")]
    streams: Vec<NewStream>,
    /// Time for which streams stay CREATING, UPDATING or DELETING, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86_400_000))]
    state_delay: u64,
    /// Maximum open shards in the account
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    shard_limit: u32,
    /// Lifetime of shard iterators, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    iterator_ttl: u64,
    /// AWS account id in ARNs
    #[arg(long, value_name = "ID", default_value = "000000000000", value_parser = account_id)]
    account: String,
    /// AWS region in ARNs
    #[arg(long, default_value = "us-east-1", value_parser = region)]
    region: String,
    /// Random seed for injected faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// A stream to create at startup.
#[derive(Debug, Clone)]
struct NewStream {
    name: String,
    shards: i64,
}

impl std::str::FromStr for NewStream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, shards) = text.split_once(':').unwrap_or((text, "1"));
        let shards = shards.parse().map_err(|_| format!("{shards:?} is not a number of shards"))?;
        Ok(Self { name: name.to_owned(), shards })
    }
}

fn region(text: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let well_formed = !text.is_empty() && text.bytes().all(fits);
    let why = "a region has lower-case letters, digits and hyphens, such as us-east-1";
    if well_formed { Ok(text.to_owned()) } else { Err(why.to_owned()) }
}

fn account_id(text: &str) -> Result<String, String> {
    let well_formed = text.len() == 12 && text.bytes().all(|b| b.is_ascii_digit());
    if well_formed { Ok(text.to_owned()) } else { Err("an account has 12 digits".to_owned()) }
}

/// Parses a number of bytes, with an optional unit.
fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => 0,
    };
    let size = digits.parse().ok().and_then(|count: usize| count.checked_mul(unit));
    size.filter(|bytes| *bytes >= LEAST_MEMORY).ok_or_else(|| {
        format!("a size is a number and a unit, such as 512MiB or 2GiB, and {LEAST_MEMORY} bytes at least")
    })
}

/// Smallest value of `--max-memory`, in bytes: the largest request fits.
const LEAST_MEMORY: usize = 16 << 20;

/// Serves requests until it is stopped.
pub(crate) async fn run(options: LocalOptions) -> Result<(), CommandFailure> {
    // Signals are caught before the ready line, so that a stop right after it is not missed.
    let (stop, force) = (crate::signals::wait_for_signal(1)?, crate::signals::wait_for_signal(2)?);
    let local = start(&options).await?;
    // A temporary file, removed on return.
    let ca_file = match local.ca_pem() {
        None => None,
        Some(pem) => Some(CaFile::of(&options.tls, options.data.as_deref(), pem)?),
    };
    let ca_file = ca_file.as_ref().map(CaFile::path);
    ready::print(&local, &options.region, ca_file).map_err(CommandFailure::result)?;
    stop.await;
    // A second signal ends it at once: a client may hold a request open indefinitely.
    tokio::select! {
        biased;
        () = force => Err(CommandFailure::result("stopped before all requests had finished")),
        () = local.stop() => Ok(()),
    }
}

async fn start(options: &LocalOptions) -> Result<Local, CommandFailure> {
    let address = SocketAddr::new(options.host, options.port);
    let mut builder = Local::builder().with_address(address);
    builder = builder.with_max_concurrent_streams(options.max_concurrent_streams);
    builder = builder.with_client_timeout(Duration::from_secs(options.client_timeout));
    let tls_port = options.tls.port_beside(options.port);
    if let Some(tls) = options.tls.certificate(options.data.as_deref())? {
        builder = builder.with_tls(tls).with_tls_port(tls_port);
    }
    let engine = match &options.data {
        None => Engine::new(engine_options(options), Clock::system()),
        Some(folder) => {
            builder = builder.with_tables_file(folder.join("dynamodb.sqlite"));
            open(options, folder)?
        }
    };
    create_streams(&engine, &options.streams)?;
    let taken = |port, option, source: io::Error| {
        let host = options.host;
        if source.kind() != io::ErrorKind::AddrInUse {
            return CommandFailure::usage(format!(
                "cannot listen on port {port} of {host}: {source}"
            ));
        }
        CommandFailure::usage(format!(
            "port {port} of {host} is in use: stop the program that uses it, or choose another \
             port with {option} (0 selects a free one)"
        ))
    };
    builder.with_engine(Arc::new(engine)).start().await.map_err(|error| match error {
        LocalStartError::Listen { source, .. } => taken(options.port, "--port", source),
        LocalStartError::ListenTls { source, .. } => taken(tls_port, "--tls-port", source),
        other => CommandFailure::usage(other),
    })
}

fn engine_options(options: &LocalOptions) -> EngineOptions {
    EngineOptions {
        account_id: options.account.clone(),
        region: options.region.clone(),
        create_delay_ms: options.state_delay,
        update_delay_ms: options.state_delay,
        delete_delay_ms: options.state_delay,
        shard_limit: options.shard_limit,
        enforce_limits: options.enforce_limits,
        iterator_ttl_ms: options.iterator_ttl.saturating_mul(1_000),
        max_memory_bytes: options.max_memory,
        seed: options.seed,
        ..EngineOptions::default()
    }
}

/// Opens the data folder, and reports on standard error if a crash left a partial write.
fn open(options: &LocalOptions, folder: &Path) -> Result<Engine, CommandFailure> {
    let trouble = |problem: &str| {
        print_note!("error: {problem}. Writes are refused until the disk can be written again");
    };
    let keeping = JournalOptions { fsync: options.fsync, trouble, ..JournalOptions::default() };
    let recovered = Engine::open(engine_options(options), Clock::system(), folder, keeping)
        .map_err(CommandFailure::usage)?;
    if let Some(cut) = &recovered.cut {
        print_note!(
            "warning: a crash left an incomplete write at the end of {}: removed {} bytes, down to \
             {}",
            cut.path.display(),
            cut.bytes,
            cut.offset
        );
    }
    Ok(recovered.engine)
}

/// Creates the streams that do not exist yet.
fn create_streams(engine: &Engine, streams: &[NewStream]) -> Result<(), CommandFailure> {
    for stream in streams {
        let request = anabranch_local::op::create_stream::Request {
            stream_name: Some(stream.name.clone()),
            shard_count: Some(stream.shards),
            ..Default::default()
        };
        match engine.create_stream(&request) {
            Err(error) if error.kind != anabranch_local::ErrorKind::ResourceInUse => {
                let text = format!("cannot create stream {:?}: {}", stream.name, error.message);
                return Err(CommandFailure::usage(text));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_and_room_for_a_request() {
        for (text, size) in [
            ("512MiB", Some(512 << 20)),
            ("512m", Some(512 << 20)),
            ("2GiB", Some(2 << 30)),
            ("33554432", Some(32 << 20)),
            ("16384k", Some(16 << 20)),
            ("1MiB", None),
            ("10TiB", None),
            ("MiB", None),
            ("-1GiB", None),
            ("99999999999999999999", None),
            ("9999999999999GiB", None),
        ] {
            assert_eq!(bytes(text).ok(), size, "{text}");
        }
    }
}
