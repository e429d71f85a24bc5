//! What happens to a record that the handler can't do: tried for ever, or put aside whole.

use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::sync::Mutex;

/// What happens after the handler fails.
#[derive(Clone, Debug, Default)]
pub enum OnError {
    /// The same records are tried again, with growing pauses, for ever. Nothing passes them in
    /// their lane.
    #[default]
    Retry,
    /// After so many attempts the record is put aside, and its lane goes on.
    Park {
        /// How often the handler is called for it.
        attempts: u32,
        /// Where it is put.
        file: ParkFile,
    },
}

/// A file of records that were put aside: one JSON object a line, with everything that is needed
/// to handle the record later. Clones write to one file.
#[derive(Clone, Debug)]
pub struct ParkFile {
    /// Its path.
    path: PathBuf,
    /// One write at a time, so that lines stay whole.
    turn: Arc<Mutex<()>>,
}

impl ParkFile {
    /// Records go to the end of the file at `path`, which is made when the first one comes.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), turn: Arc::default() }
    }

    /// Puts a record aside. When it returns, the record is on the disk.
    pub(super) async fn park(
        &self,
        shard: &LeaseKey,
        record: &UserRecord,
        error: &str,
    ) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let mut options = OpenOptions::new();
        let mut file = options.create(true).read(true).append(true).open(&self.path).await?;
        let mut lines = String::new();
        if ends_inside_a_line(&mut file).await? {
            // What a crash cut off must not swallow the next record.
            lines.push('\n');
        }
        lines.push_str(&line(shard, record, error));
        file.write_all(lines.as_bytes()).await?;
        file.sync_data().await
    }
}

async fn ends_inside_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata().await?.len() == 0 {
        return Ok(false);
    }
    file.seek(io::SeekFrom::End(-1)).await?;
    Ok(file.read_u8().await? != b'\n')
}

fn line(shard: &LeaseKey, record: &UserRecord, error: &str) -> String {
    let hash = record.explicit_hash_key.map_or("null".to_owned(), |hash| format!("\"{hash}\""));
    format!(
        "{{\"stream\":{},\"shard\":{},\"sequence\":\"{}\",\"sub\":{},\"aggregated\":{},\"key\":{},\
         \"explicit_hash_key\":{hash},\"arrival_ms\":{},\"error\":{},\"data\":\"{}\"}}\n",
        quoted(shard.stream.as_str()),
        quoted(shard.shard.as_str()),
        record.sequence,
        record.sub,
        record.aggregated,
        quoted(record.partition_key.as_str()),
        record.arrival_ms,
        quoted(error),
        base64(&record.data),
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

fn base64(data: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for three in data.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::hash::HashKey;
    use bytes::Bytes;

    fn record(data: &'static [u8]) -> UserRecord {
        UserRecord {
            sequence: "49590338271490256608559692538361571095921575989136588898".parse().unwrap(),
            sub: 3,
            aggregated: true,
            partition_key: "a \"key\"\\".into(),
            explicit_hash_key: Some(HashKey(7)),
            data: Bytes::from_static(data),
            arrival_ms: 5,
        }
    }

    #[test]
    fn bytes_are_written_as_everybody_reads_them() {
        for (data, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (&[0xff, 0xfe, 0xfd], "//79"),
        ] {
            assert_eq!(base64(data), text);
        }
    }

    #[tokio::test]
    async fn a_parked_record_is_whole_also_behind_a_line_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("parked.jsonl");
        std::fs::write(&path, "{\"cut").unwrap();
        let shard = LeaseKey::new("s", "shardId-000000000000");
        let park = ParkFile::new(&path);
        park.park(&shard, &record(b"one"), "line\nbreak \u{1}").await.unwrap();
        park.park(&shard, &record(b"two"), "e").await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(
            lines[1],
            r#"{"stream":"s","shard":"shardId-000000000000","sequence":"49590338271490256608559692538361571095921575989136588898","sub":3,"aggregated":true,"key":"a \"key\"\\","explicit_hash_key":"7","arrival_ms":5,"error":"line\nbreak \u0001","data":"b25l"}"#
        );
        assert!(lines[2].ends_with(r#""data":"dHdv"}"#));
    }
}
