//! What the demo shows: on a terminal a picture that moves, elsewhere plain lines.

use super::Scene;
use crate::failure::Failure;
use crate::line::short;
use crate::output::say;
use anabranch::clock::Clock;
use anabranch_model::lineage::Shard;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;

/// Happenings that stay in the picture.
const REMEMBERED: usize = 8;
/// Looks between two plain lines.
const LOOKS_A_LINE: u32 = 8;
/// The width of a picture, where the terminal does not tell.
const WIDTH: usize = 80;

/// The picture, and what it needs to move.
pub(super) struct View {
    /// Whether it is drawn over and over.
    live: bool,
    clock: Clock,
    began_ms: u64,
    /// What happened lately.
    happened: VecDeque<String>,
    /// Lines of the picture that stands.
    drawn: usize,
    looks: u32,
    /// Deliveries at the last look, and when that was.
    last: (usize, u64),
}

impl View {
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

    /// Something happened.
    pub(super) fn say(&mut self, text: &str) {
        let tenths = (self.clock.now_ms() - self.began_ms) / 100;
        let line = format!("{:>3}.{} s  {text}", tenths / 10, tenths % 10);
        if !self.live {
            say!("{line}");
            return;
        }
        self.happened.push_back(line);
        if self.happened.len() > REMEMBERED {
            self.happened.pop_front();
        }
    }

    /// Looks at what was delivered, and shows it.
    pub(super) async fn look(&mut self, scene: &Scene<'_>) -> Result<(), Failure> {
        scene.deliveries.read()?;
        let (put, delivered) = (scene.put.count(), scene.deliveries.distinct());
        let now_ms = self.clock.now_ms();
        let (before, before_ms) = self.last;
        let rate = (delivered - before) as u64 * 1_000 / (now_ms - before_ms).max(1);
        self.last = (delivered, now_ms);
        self.looks += 1;
        let status = format!(
            "{put} put, {delivered} delivered, {} behind, {rate} a second",
            put.saturating_sub(delivered)
        );
        if !self.live {
            if self.looks.is_multiple_of(LOOKS_A_LINE) {
                self.say(&status);
            }
            return Ok(());
        }
        let lineage = scene.stream.lineage().await?;
        let mut open: Vec<&Shard> = lineage.open_shards().collect();
        open.sort_by_key(|shard| shard.range);
        let mut lines = vec![status, String::new()];
        lines.push(format!("{:<10}{:>7}  {:<12}{:>8}  keys", "shard", "share", "reader", "behind"));
        for shard in open {
            lines.push(row(scene, shard));
        }
        lines.push(String::new());
        lines.extend(self.happened.iter().cloned());
        self.draw(&lines);
        Ok(())
    }

    /// Draws over what stands.
    fn draw(&mut self, lines: &[String]) {
        let size = terminal_size::terminal_size();
        let width = size.map_or(WIDTH, |(width, _)| usize::from(width.0));
        // What does not fit would scroll away from under the next picture.
        let height = size.map_or(usize::MAX, |(_, height)| usize::from(height.0).saturating_sub(1));
        let lines = &lines[..lines.len().min(height)];
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in lines {
            let fits: String = line.chars().take(width.saturating_sub(1)).collect();
            let _ = writeln!(text, "\x1b[2K{fits}");
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        // A terminal that went away is no reason to stop.
        let _ =
            std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    }

    /// The picture stays as it is.
    pub(super) fn close(&mut self) {
        self.drawn = 0;
    }
}

/// One shard: its share of the keys, who reads it, and how many of its records wait.
fn row(scene: &Scene<'_>, shard: &Shard) -> String {
    let percent = share_of(shard);
    let behind = scene.put.of_shard(&shard.id).saturating_sub(scene.deliveries.of_shard(&shard.id));
    let reader = scene.deliveries.reader_of(&shard.id).unwrap_or_else(|| "-".to_owned());
    let (lowest, highest) = (column(shard.range.start().0), column(shard.range.end().0));
    let keys: String =
        (0..32).map(|at| if (lowest..=highest).contains(&at) { '█' } else { '·' }).collect();
    format!("{:<10}{percent:>6.1}%  {reader:<12}{behind:>8}  {keys}", short(&shard.id))
}

/// Which of 32 columns a hash key is in.
fn column(hash: u128) -> u32 {
    u32::try_from(hash >> 123).unwrap_or(31)
}

fn share_of(shard: &Shard) -> f64 {
    let keys = shard.range.end().0 - shard.range.start().0;
    // Thousandths fit any number type, and are exact enough for a person.
    f64::from(u32::try_from(keys / (u128::MAX / 1_000)).unwrap_or(1_000)) / 10.0
}
