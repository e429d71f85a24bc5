//! `relay status`: status of an outbox, as text or JSON.

use super::outbox::OutboxOptions;
use super::{could_not_start, counted};
use crate::failure::CommandFailure;
use crate::output::print_line;
use anabranch_outbox::{BlockedKey, BlockingTransaction, OutboxStatus};
use serde_json::{Value, json};

/// Options of `relay status`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Exit code 1 if keys are blocked, or if a problem prevents relaying.")]
pub(super) struct RelayStatusOptions {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the status of the outbox.
pub(super) async fn run(
    options: RelayStatusOptions,
    outbox: &OutboxOptions,
) -> Result<(), CommandFailure> {
    let (database, table) = (outbox.database()?, outbox.table()?);
    let status = anabranch_outbox::status(&database, &table).await.map_err(could_not_start)?;
    let label = table.label();
    if options.json {
        print_line!("{}", as_json(&label, &status));
    } else {
        for line in lines(&label, &status) {
            print_line!("{line}");
        }
    }
    match (status.parked.len(), status.problems.len()) {
        (0, 0) => Ok(()),
        (0, _) => Err(CommandFailure::result(format!(
            "{label} can't be relayed: fix the listed problems"
        ))),
        (blocked, _) => Err(CommandFailure::result(format!(
            "{} in {label}: 'anabranch relay skip ID' discards a row, 'anabranch relay retry KEY' \
             sends it again",
            counted(blocked as u64, "key is blocked", "keys are blocked")
        ))),
    }
}

fn lines(label: &str, status: &OutboxStatus) -> Vec<String> {
    let oldest =
        status.oldest_seconds.map_or(String::new(), |s| format!(", the oldest for {s:.1} s"));
    let relay = match status.relay {
        Some(pid) => format!("a relay is running (server process {pid})"),
        None => "no relay is running".to_owned(),
    };
    let waiting = |rows| counted(rows, "row waits", "rows wait");
    let mut all = vec![format!("{label}: {}{oldest}; {relay}", waiting(status.waiting_rows))];
    if status.held_rows > 0 {
        let held = waiting(status.held_rows);
        all.push(format!("{held} for transactions that are still running:"));
    }
    all.extend(status.holders.iter().map(holder));
    all.extend(status.parked.iter().map(blocked_key));
    all.extend(status.problems.iter().map(|problem| format!("problem: {problem}")));
    all
}

fn holder(holder: &BlockingTransaction) -> String {
    let BlockingTransaction { pid, transaction, seconds, who } = holder;
    let process = pid.map_or("no process".to_owned(), |pid| format!("process {pid}"));
    format!("  transaction {transaction}, {process}, for {seconds:.1} s: {who}")
}

fn blocked_key(blocked: &BlockedKey) -> String {
    let BlockedKey { row, key, reason, seconds, waiting_rows } = blocked;
    let waiting = counted(*waiting_rows, "row waits", "rows wait");
    format!("blocked at row {row} for {seconds:.0} s: key {key:?}, {waiting}: {reason}")
}

fn as_json(label: &str, status: &OutboxStatus) -> Value {
    json!({
        "table": label,
        "waiting_rows": status.waiting_rows,
        "held_rows": status.held_rows,
        "oldest_seconds": status.oldest_seconds,
        "relay_pid": status.relay,
        "holders": status.holders.iter().map(|holder| json!({
            "pid": holder.pid,
            "transaction": holder.transaction,
            "seconds": holder.seconds,
            "who": holder.who,
        })).collect::<Vec<_>>(),
        "parked": status.parked.iter().map(|blocked| json!({
            "row": blocked.row,
            "key": blocked.key,
            "reason": blocked.reason,
            "seconds": blocked.seconds,
            "waiting_rows": blocked.waiting_rows,
        })).collect::<Vec<_>>(),
        "problems": status.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
