//! View of the demo: redrawn on a terminal, else plain lines.

use super::DemoContext;
use crate::failure::CommandFailure;
use crate::line::short;
use crate::output::print_line;
use crate::table::cut;
use anabranch::clock::Clock;
use anabranch_model::hash::HashRange;
use anabranch_model::lineage::Shard;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;

/// Number of events kept on display.
const REMEMBERED: usize = 8;
/// Refreshes between two plain lines.
const LOOKS_A_LINE: u32 = 8;
/// Default width if the terminal reports none.
const WIDTH: usize = 80;
/// Maximum width of a reader's name.
const NAME: usize = 12;
/// Maximum width of the key range.
const KEYS: usize = 32;
/// Width of the columns to the left of the key range.
const LEFT_OF_KEYS: usize = 41;

/// State of the view.
pub(super) struct DemoView {
    /// True if the view is redrawn in place.
    live: bool,
    clock: Clock,
    began_ms: u64,
    /// Recent events.
    happened: VecDeque<String>,
    /// Number of lines drawn.
    drawn: usize,
    looks: u32,
    /// Deliveries at the last refresh, and its time.
    last: (usize, u64),
}

impl DemoView {
    pub(super) fn new(live: bool) -> Self {
        let clock = Clock::machine();
        let began_ms = clock.now_ms();
        Self {
            live,
            clock,
            began_ms,
            happened: VecDeque::new(),
            drawn: 0,
            looks: 0,
            last: (0, began_ms),
        }
    }

    /// Adds an event.
    pub(super) fn log(&mut self, text: &str) {
        let tenths = (self.clock.now_ms() - self.began_ms) / 100;
        let line = format!("{:>3}.{} s  {text}", tenths / 10, tenths % 10);
        if !self.live {
            print_line!("{line}");
            return;
        }
        self.happened.push_back(line);
        if self.happened.len() > REMEMBERED {
            self.happened.pop_front();
        }
    }

    /// Reads the delivery log and redraws.
    pub(super) async fn refresh(&mut self, scene: &DemoContext<'_>) -> Result<(), CommandFailure> {
        scene.deliveries.read()?;
        let (put, delivered) = (scene.put.count(), scene.deliveries.distinct());
        let now_ms = self.clock.now_ms();
        let (before, before_ms) = self.last;
        let rate = (delivered - before) as u64 * 1_000 / (now_ms - before_ms).max(1);
        self.last = (delivered, now_ms);
        self.looks += 1;
        let status = format!(
            "{put} put, {delivered} delivered, {} behind, {rate} per second",
            put.saturating_sub(delivered)
        );
        if !self.live {
            if self.looks.is_multiple_of(LOOKS_A_LINE) {
                self.log(&status);
            }
            return Ok(());
        }
        let lineage = scene.stream.lineage().await?;
        let mut open: Vec<&Shard> = lineage.open_shards().collect();
        open.sort_by_key(|shard| shard.range);
        let rows: Vec<ShardLine> =
            open.into_iter().map(|shard| ShardLine::of(scene, shard)).collect();
        let size = terminal_size::terminal_size();
        let width = size.map_or(WIDTH, |(width, _)| usize::from(width.0));
        // More lines would scroll and break the next redraw.
        let height = size.map_or(usize::MAX, |(_, height)| usize::from(height.0).saturating_sub(1));
        let mut lines = picture(&status, &rows, self.happened.iter(), width);
        lines.truncate(height);
        self.draw(&lines);
        Ok(())
    }

    /// Redraws over the previous lines.
    fn draw(&mut self, lines: &[String]) {
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in lines {
            let _ = writeln!(text, "\x1b[2K{line}");
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        // A terminal that is gone is no reason to stop.
        let _ =
            std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    }

    /// Leaves the last drawing on the terminal.
    pub(super) fn close(&mut self) {
        self.drawn = 0;
    }
}

/// One shard: its share of the keys, its reader, and its undelivered records.
struct ShardLine {
    /// Short name.
    shard: String,
    /// Share of the hash range, in percent.
    percent: f64,
    reader: String,
    behind: u64,
    range: HashRange,
}

impl ShardLine {
    fn of(scene: &DemoContext<'_>, shard: &Shard) -> Self {
        let delivered = scene.deliveries.of_shard(&shard.id);
        Self {
            shard: short(&shard.id),
            percent: share_of(shard),
            reader: scene.deliveries.reader_of(&shard.id).unwrap_or_else(|| "-".to_owned()),
            behind: scene.put.of_shard(&shard.id).saturating_sub(delivered),
            range: shard.range,
        }
    }

    /// Formats the shard, with its key range in `columns` columns.
    fn line(&self, columns: usize) -> String {
        let Self { shard, percent, reader, behind, range } = self;
        let reader = cut(reader, NAME - 1);
        let (lowest, highest) = (column(range.start().0, columns), column(range.end().0, columns));
        let keys: String = (0..columns as u128)
            .map(|at| if (lowest..=highest).contains(&at) { '█' } else { '·' })
            .collect();
        format!("{shard:<10}{percent:>6.1}%  {reader:<NAME$}{behind:>8}  {keys}")
    }
}

/// Returns the lines of the view, each narrower than the terminal: a line of full width may wrap.
fn picture<'a>(
    status: &str,
    rows: &[ShardLine],
    happened: impl Iterator<Item = &'a String>,
    width: usize,
) -> Vec<String> {
    let room = width.saturating_sub(1);
    let columns = room.saturating_sub(LEFT_OF_KEYS).min(KEYS);
    let head = format!("{:<10}{:>7}  {:<NAME$}{:>8}  keys", "shard", "share", "reader", "behind");
    let mut lines = vec![status.to_owned(), String::new(), head];
    lines.extend(rows.iter().map(|row| row.line(columns)));
    lines.push(String::new());
    lines.extend(happened.cloned());
    lines.iter().map(|line| cut(line.trim_end(), room).into_owned()).collect()
}

/// Returns the column of a hash key.
fn column(hash: u128, columns: usize) -> u128 {
    ((hash >> 64) * columns as u128) >> 64
}

fn share_of(shard: &Shard) -> f64 {
    let keys = shard.range.end().0 - shard.range.start().0;
    // Thousandths fit any number type and are precise enough for display.
    f64::from(u32::try_from(keys / (u128::MAX / 1_000)).unwrap_or(1_000)) / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::hash::HashKey;

    #[test]
    fn the_picture_is_as_wide_as_the_terminal_lets_it_be() {
        let half = u128::MAX / 2;
        let row = |number: u32, from: u128, to: u128, reader: &str| ShardLine {
            shard: format!("shard-{number}"),
            percent: 50.0,
            reader: reader.to_owned(),
            behind: 17,
            range: HashRange::new(HashKey(from), HashKey(to)).unwrap(),
        };
        let rows = [
            row(4, 0, half, "worker-1"),
            row(12, half + 1, u128::MAX, "a worker with a long name"),
        ];
        let happened = [format!("  3.4 s  worker-2 is killed (SIGKILL), {}", "so ".repeat(20))];
        let status = "12000 put, 11983 delivered, 17 behind, 1998 a second";
        let check = |width: usize, expected: &[&str]| {
            let lines = picture(status, &rows, happened.iter(), width);
            assert_eq!(lines, expected, "{width}");
            assert!(lines.iter().all(|line| line.chars().count() < width), "{width}");
        };
        check(
            40,
            &[
                "12000 put, 11983 delivered, 17 behind,…",
                "",
                "shard       share  reader        behin…",
                "shard-4     50.0%  worker-1          17",
                "shard-12    50.0%  a worker w…       17",
                "",
                "  3.4 s  worker-2 is killed (SIGKILL),…",
            ],
        );
        check(
            60,
            &[
                "12000 put, 11983 delivered, 17 behind, 1998 a second",
                "",
                "shard       share  reader        behind  keys",
                "shard-4     50.0%  worker-1          17  █████████·········",
                "shard-12    50.0%  a worker w…       17  ·········█████████",
                "",
                "  3.4 s  worker-2 is killed (SIGKILL), so so so so so so s…",
            ],
        );
        check(
            80,
            &[
                "12000 put, 11983 delivered, 17 behind, 1998 a second",
                "",
                "shard       share  reader        behind  keys",
                "shard-4     50.0%  worker-1          17  ████████████████················",
                "shard-12    50.0%  a worker w…       17  ················████████████████",
                "",
                "  3.4 s  worker-2 is killed (SIGKILL), so so so so so so so so so so so so so …",
            ],
        );
        check(
            100,
            &[
                "12000 put, 11983 delivered, 17 behind, 1998 a second",
                "",
                "shard       share  reader        behind  keys",
                "shard-4     50.0%  worker-1          17  ████████████████················",
                "shard-12    50.0%  a worker w…       17  ················████████████████",
                "",
                "  3.4 s  worker-2 is killed (SIGKILL), so so so so so so so so so so so so so so so so so so so so",
            ],
        );
    }
}
