//! Record sinks: a child process, standard output or a file.

use super::exec::Exec;
use crate::line;
use crate::printer::{NOBODY_READS, Printer};
use anabranch::consumer::{DeadLetter, Handler, HandlerError, Interrupted};
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use std::io::Write as _;
use std::sync::Arc;

/// Sink of a record. A single type for all sinks, so that only one type of consumer is built.
pub(crate) enum RecordSink {
    /// The child of the record's shard, which answers.
    Exec {
        children: Exec,
        /// True if the stream holds dead letters.
        parked: bool,
    },
    /// Standard output.
    Print {
        printer: Printer,
        form: LineFormat,
        /// True if the stream holds dead letters.
        parked: bool,
    },
    /// A file to which other processes append too, with one write per record.
    Append {
        /// Open in append mode.
        file: Arc<std::fs::File>,
        line: LineFormatter,
    },
}

/// Formats a record as a line.
pub(crate) type LineFormatter = Box<dyn Fn(&LeaseKey, &UserRecord) -> String + Send + Sync>;

/// Output format of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// Plain text.
    Plain,
    /// A JSON object.
    Json,
}

impl LineFormat {
    /// Formats a record, which is unwrapped if the stream holds dead letters.
    fn line_of(
        self,
        parked: bool,
        shard: &LeaseKey,
        record: &UserRecord,
    ) -> Result<String, HandlerError> {
        if !parked {
            return Ok(self.line(shard, record));
        }
        let parked = DeadLetter::of(record)?;
        Ok(self.line(&parked.shard, &parked.record))
    }

    /// Formats a record.
    pub(crate) fn line(self, shard: &LeaseKey, record: &UserRecord) -> String {
        match self {
            Self::Plain => line::plain(&shard.shard, record),
            Self::Json => line::json(&shard.shard, record),
        }
    }
}

impl Handler for RecordSink {
    fn max_records(&self) -> usize {
        match self {
            Self::Exec { .. } | Self::Append { .. } => 1,
            // Records that are printed together are done together.
            Self::Print { .. } => 500,
        }
    }

    async fn handle(
        &self,
        shard: &Arc<LeaseKey>,
        _lease_term: u64,
        records: &[UserRecord],
    ) -> Result<(), HandlerError> {
        match self {
            Self::Exec { children, parked } => {
                for record in records {
                    let line = LineFormat::Json.line_of(*parked, shard, record)?;
                    children.send(&shard.shard, line).await?;
                }
                Ok(())
            }
            Self::Print { printer, form, parked } => {
                let lines = records.iter().map(|record| form.line_of(*parked, shard, record));
                let text: String = lines.collect::<Result<_, _>>()?;
                // The records are not at fault. The command is about to end.
                let printed = printer.print(text).await;
                printed.map_err(|_| Interrupted::because(NOBODY_READS).into())
            }
            Self::Append { file, line } => {
                for record in records {
                    (&**file).write_all(line(shard, record).as_bytes())?;
                }
                Ok(())
            }
        }
    }
}
