//! Where a record goes: to a child process, to standard output, or into a file.

use super::exec::Exec;
use crate::line;
use crate::printer::{NOBODY_READS, Printer};
use anabranch::consumer::{DeadLetter, Handler, HandlerError, Interrupted};
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use std::io::Write as _;
use std::sync::Arc;

/// Where a record goes. One type for all of them, so that there is one consumer to build.
pub(crate) enum RecordSink {
    /// To the child of its shard, which answers.
    Exec {
        /// The children.
        children: Exec,
        /// Whether the stream holds records that were put aside.
        parked: bool,
    },
    /// To standard output.
    Print {
        /// The thread that prints.
        printer: Printer,
        /// How.
        form: LineFormat,
        /// Whether the stream holds records that were put aside.
        parked: bool,
    },
    /// Into a file that other processes append to as well, one write a record.
    Append {
        /// The file.
        file: Arc<std::fs::File>,
        /// The line of a record.
        line: LineFormatter,
    },
}

/// Makes the line of a record.
pub(crate) type LineFormatter = Box<dyn Fn(&LeaseKey, &UserRecord) -> String + Send + Sync>;

/// How a record is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// For people.
    Plain,
    /// As a JSON object.
    Json,
}

impl LineFormat {
    /// The line of a record of a stream that may hold what was put aside.
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

    /// The line of a record.
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
            // What is printed together is done together.
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
                // That is none of the records' doing. The command is about to end.
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
