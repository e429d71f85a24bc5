//! Record sinks: a child process, standard output or a file.

use super::exec::Exec;
use crate::line;
use crate::printer::{Printer, STDOUT_CLOSED};
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
        /// True if the stream holds dead letters, from which the original records are taken.
        unwrap: bool,
    },
    /// Standard output.
    Print {
        printer: Printer,
        form: LineFormat,
        /// True if the stream holds dead letters, from which the original records are taken.
        unwrap: bool,
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
        unwrap: bool,
        shard: &LeaseKey,
        record: &UserRecord,
    ) -> Result<String, HandlerError> {
        if !unwrap {
            return Ok(self.line(shard, record));
        }
        let letter = DeadLetter::of(record)?;
        Ok(self.line(&letter.shard, &letter.record))
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
            Self::Exec { children, unwrap } => {
                for record in records {
                    let line = LineFormat::Json.line_of(*unwrap, shard, record)?;
                    children.send(&shard.shard, line).await?;
                }
                Ok(())
            }
            Self::Print { printer, form, unwrap } => {
                let lines = records.iter().map(|record| form.line_of(*unwrap, shard, record));
                let text: String = lines.collect::<Result<_, _>>()?;
                // The records are not at fault. The command is about to end.
                let printed = printer.print(text).await;
                printed.map_err(|_| Interrupted::because(STDOUT_CLOSED).into())
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
