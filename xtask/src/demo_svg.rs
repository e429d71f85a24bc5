//! `cargo xtask demo-svg`: records a run of `anabranch demo` and writes it to `docs/demo.svg`, an
//! animated picture without script.
//!
//! ```text
//! script (a terminal) ── bytes ──▶ Screen ── one Frame per redraw ──▶ cells with a time span ──▶ SVG
//! ```

use crate::shell::{built, cargo, profile, root, show};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The picture, from the repository's root.
const PICTURE: &str = "docs/demo.svg";
/// Upper bound of its size in bytes.
const MAX_BYTES: usize = 60 * 1024;
/// Width of the terminal in columns.
const COLUMNS: usize = 100;
/// Last line of a run in which every guarantee held.
const SUCCESS: &str = "verdict: every key in order, nothing lost";

/// Length of the animation in milliseconds, without the end state.
const PLAY_MS: u64 = 17_000;
/// Time for which the end state stays, in milliseconds.
const HOLD_MS: u64 = 5_000;
/// Minimum time between two frames of the animation, in milliseconds.
const FRAME_MS: u64 = 240;

/// Width of a column and height of a line, in pixels.
const CELL: (usize, usize) = (8, 20);
/// Space around the text, in pixels.
const MARGIN: usize = 18;

/// Records the demo and writes the picture.
pub(crate) fn run() -> ExitCode {
    match record().and_then(|frames| write(&frames)) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Lines of the terminal at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    /// Milliseconds since the start of the demo.
    at_ms: u64,
    lines: Vec<String>,
}

/// Builds the binary and runs the demo in a terminal of its own.
fn record() -> Result<Vec<Frame>, String> {
    let package = ["build", "--profile", profile(), "--package", "anabranch-cli", "--locked"];
    show(&mut cargo(&package))?;
    let command = format!("stty cols {COLUMNS} rows 50 && exec \"$ANABRANCH\" demo");
    let mut child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("ANABRANCH", built("anabranch"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`script` of util-linux did not start: {error}"))?;
    let mut output = child.stdout.take().expect("standard output is piped");
    let began = Instant::now();
    let mut screen = Screen::default();
    let mut buffer = [0; 8192];
    loop {
        let read = output.read(&mut buffer).map_err(|error| format!("the demo: {error}"))?;
        if read == 0 {
            break;
        }
        let at_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        screen.feed(&buffer[..read], at_ms);
    }
    let status = child.wait().map_err(|error| format!("the demo: {error}"))?;
    let frames = screen.finish();
    let last = frames.last().map(|frame| frame.lines.join("\n")).unwrap_or_default();
    if status.success() && last.contains(SUCCESS) {
        Ok(frames)
    } else {
        Err(format!("the demo ended with {status}:\n{last}"))
    }
}

fn write(frames: &[Frame]) -> Result<String, String> {
    let svg = picture(frames);
    if svg.len() > MAX_BYTES {
        return Err(format!("{PICTURE} would have {} bytes, at most {MAX_BYTES}", svg.len()));
    }
    let path = root().join(PICTURE);
    fs::write(&path, &svg).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(format!("{PICTURE}: {} frames, {} bytes", frames.len(), svg.len()))
}

/// Screen of a terminal that understands the three sequences of the demo: cursor up, erase the
/// line, and erase all below.
#[derive(Debug, Default)]
struct Screen {
    /// Bytes that are not a complete line or sequence yet.
    pending: Vec<u8>,
    lines: Vec<String>,
    row: usize,
    at_ms: u64,
    frames: Vec<Frame>,
}

impl Screen {
    /// Applies output of the demo. A redraw ends with "erase all below", and becomes a frame.
    fn feed(&mut self, bytes: &[u8], at_ms: u64) {
        self.at_ms = at_ms;
        self.pending.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(len) = self.apply(used) {
            used += len;
        }
        self.pending.drain(..used);
    }

    /// Applies the first sequence or line from `from` on. Returns its length, or `None` if it is
    /// incomplete.
    fn apply(&mut self, from: usize) -> Option<usize> {
        let rest = &self.pending[from..];
        if let Some(sequence) = rest.strip_prefix(b"\x1b[") {
            let digits = sequence.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = String::from_utf8_lossy(&sequence[..digits]).parse().unwrap_or(1);
            match *sequence.get(digits)? {
                b'A' => self.row = self.row.saturating_sub(number),
                b'J' => {
                    self.lines.truncate(self.row);
                    self.frames.push(Frame { at_ms: self.at_ms, lines: self.lines.clone() });
                }
                // Lines are replaced as a whole, so erasing one needs no action.
                _ => {}
            }
            return Some(b"\x1b[".len() + digits + 1);
        }
        let len = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..len]).trim_end().to_owned();
        match self.lines.get_mut(self.row) {
            Some(old) => *old = line,
            None => self.lines.push(line),
        }
        self.row += 1;
        Some(len + 1)
    }

    /// Returns the frames, with the end state as the last one.
    fn finish(mut self) -> Vec<Frame> {
        self.frames.push(Frame { at_ms: self.at_ms, lines: self.lines });
        self.frames
    }
}

/// Text without double spaces at a fixed place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    row: usize,
    column: usize,
    text: String,
    /// Worker named in the same line.
    worker: Option<usize>,
}

/// Splits a line at double spaces.
fn cells(row: usize, line: &str) -> Vec<Cell> {
    let worker = worker_in(line);
    let mut found: Vec<Cell> = Vec::new();
    let mut spaces = 2;
    for (column, c) in line.chars().enumerate() {
        if c == ' ' {
            spaces += 1;
            continue;
        }
        match found.last_mut() {
            Some(cell) if spaces < 2 => {
                cell.text.extend(std::iter::repeat_n(' ', spaces));
                cell.text.push(c);
            }
            _ => found.push(Cell { row, column, text: c.into(), worker }),
        }
        spaces = 0;
    }
    found
}

/// Returns the number of the first worker in a text.
fn worker_in(text: &str) -> Option<usize> {
    let (_, behind) = text.split_once("worker-")?;
    let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    behind[..digits].parse().ok()
}

/// A span of the animation: the index of its first frame, and that of the frame that ends it.
/// `None` lasts until the end.
type Span = (usize, Option<usize>);

/// Returns the cells of each span.
fn spans(frames: &[Frame]) -> BTreeMap<Span, Vec<Cell>> {
    let mut spans: BTreeMap<Span, Vec<Cell>> = BTreeMap::new();
    let mut shown: BTreeMap<Cell, usize> = BTreeMap::new();
    for (at, frame) in frames.iter().enumerate() {
        let lines = frame.lines.iter().enumerate();
        let now = lines.flat_map(|(row, line)| cells(row, line)).map(|cell| {
            let since = shown.get(&cell).copied().unwrap_or(at);
            (cell, since)
        });
        let kept: BTreeMap<Cell, usize> = now.collect();
        for (cell, since) in shown {
            if !kept.contains_key(&cell) {
                spans.entry((since, Some(at))).or_default().push(cell);
            }
        }
        shown = kept;
    }
    for (cell, since) in shown {
        spans.entry((since, None)).or_default().push(cell);
    }
    spans
}

/// Drops frames that follow another one too closely, but never the last.
fn thinned(frames: &[Frame]) -> Vec<Frame> {
    let mut kept: Vec<Frame> = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let is_last = index + 1 == frames.len();
        let is_due = kept.last().is_none_or(|last| frame.at_ms >= last.at_ms + FRAME_MS);
        if is_due || is_last {
            kept.push(frame.clone());
        }
    }
    kept
}

/// Draws the frames as an SVG. A renderer without animation shows the end state.
fn picture(frames: &[Frame]) -> String {
    let frames = thinned(frames);
    let last_ms = frames.last().map_or(1, |frame| frame.at_ms.max(1));
    // The first line of the picture is the prompt.
    let rows = frames.iter().map(|frame| frame.lines.len()).max().unwrap_or(0) + 2;
    let (width, height) = (COLUMNS * CELL.0 + 2 * MARGIN, rows * CELL.1 + 2 * MARGIN);
    let total_ms = PLAY_MS + HOLD_MS;
    let moment = |frame: usize| {
        let parts = frames[frame].at_ms * PLAY_MS / last_ms * 10_000 / total_ms;
        format!("{}.{:02}%", parts / 100, parts % 100)
    };

    let (mut rules, mut body) = (String::new(), String::new());
    for (index, ((from, to), cells)) in spans(&frames).into_iter().enumerate() {
        let start = moment(from);
        let end = to.map(|to| format!("{}{{visibility:hidden}}", moment(to))).unwrap_or_default();
        let _ = writeln!(
            rules,
            "@keyframes f{index}{{0%{{visibility:hidden}}{start}{{visibility:visible}}{end}}}\n\
             .f{index}{{animation-name:f{index}}}"
        );
        let hidden = if to.is_some() { " h" } else { "" };
        let _ = writeln!(body, "<g class=\"f{index}{hidden}\">");
        for cell in &cells {
            draw(&mut body, cell);
        }
        body.push_str("</g>\n");
    }
    let seconds = total_ms / 1_000;
    let (right, bottom) = (width - 1, height - 1);
    let prompt = y_of(0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">anabranch demo</title>\n\
         <desc id=\"d\">A recorded run: three workers share the shards of a local stream while \
         shards are split and merged, one worker is stopped and one is killed. It ends with: \
         {SUCCESS}.</desc>\n\
         <style>\n{STYLE}g{{animation:{seconds}s step-end infinite}}\n{rules}\
         @media (prefers-reduced-motion:reduce){{g{{animation:none}}}}\n</style>\n\
         <rect class=\"back\" x=\".5\" y=\".5\" width=\"{right}\" height=\"{bottom}\" rx=\"8\"/>\n\
         <text class=\"dim\" x=\"{MARGIN}\" y=\"{prompt}\">$ <tspan class=\"hi\">anabranch \
         demo</tspan></text>\n{body}</svg>\n"
    )
}

/// Colours and the font. The workers' colours differ in lightness too.
const STYLE: &str = "\
text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;\
fill:#d3dae3}
.back{fill:#10161f;stroke:#3d4654}
.h{visibility:hidden}
.dim{fill:#8793a3}
.hi{fill:#fff;font-weight:700}
.ok{fill:#7ee2a8;font-weight:700}
.track{fill:#232c39}
.w0{fill:#8793a3}
.w1{fill:#6cb6ff}
.w2{fill:#f6b955}
.w3{fill:#7ee2a8}
.w4{fill:#e79bf2}
.w5{fill:#ff9c8f}
";
/// Number of worker colours, without the one for "no worker".
const COLOURS: usize = 5;

/// Returns the baseline of a row.
fn y_of(row: usize) -> usize {
    MARGIN + row * CELL.1 + 14
}

/// Returns the colour class of a worker; 0 is the class for "no worker".
fn class_of(worker: Option<usize>) -> usize {
    worker.map_or(0, |number| number.saturating_sub(1) % COLOURS + 1)
}

/// Appends the elements of a cell.
fn draw(body: &mut String, cell: &Cell) {
    // Two rows are above the first line: the prompt and an empty one.
    let (x, y) = (MARGIN + cell.column * CELL.0, y_of(cell.row + 2));
    if cell.text.chars().all(|c| matches!(c, '█' | '·')) {
        let first = cell.text.chars().take_while(|c| *c == '·').count();
        let full = cell.text.chars().filter(|c| *c == '█').count();
        let (track, top, class) =
            (cell.text.chars().count() * CELL.0, y - 11, class_of(cell.worker));
        let (left, width) = (x + first * CELL.0, full * CELL.0);
        let _ = writeln!(
            body,
            "<rect class=\"track\" x=\"{x}\" y=\"{top}\" width=\"{track}\" height=\"14\"/>\
             <rect class=\"w{class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"14\"/>"
        );
        return;
    }
    let class = match cell.text.as_str() {
        SUCCESS => " class=\"ok\"",
        "shard" | "share" | "reader" | "behind" | "keys" => " class=\"dim\"",
        text if text.ends_with(" s") && cell.column < 6 => " class=\"dim\"",
        _ => "",
    };
    let _ = writeln!(body, "<text{class} x=\"{x}\" y=\"{y}\">{}</text>", coloured(&cell.text));
}

/// Returns the text for XML, with the names of workers in their colours.
fn coloured(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let words = escaped.split(' ').map(|word| {
        let name = word.trim_end_matches([',', ';', '.']);
        match name.starts_with("worker-").then(|| worker_in(name)) {
            Some(Some(number)) => {
                let (class, behind) = (class_of(Some(number)), &word[name.len()..]);
                format!("<tspan class=\"w{class}\">{name}</tspan>{behind}")
            }
            _ => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(at_ms: u64, lines: &[&str]) -> Frame {
        Frame { at_ms, lines: lines.iter().map(|line| (*line).to_owned()).collect() }
    }

    #[test]
    fn redraws_become_frames_however_the_output_is_cut() {
        let text = "\x1b[2Ka\r\n\x1b[2Kb\r\n\x1b[J\x1b[2A\x1b[2Kc █\r\n\x1b[J\r\nend\r\n";
        let expected = [frame(7, &["a", "b"]), frame(7, &["c █"]), frame(7, &["c █", "", "end"])];
        for size in 1..=text.len() {
            let mut screen = Screen::default();
            text.as_bytes().chunks(size).for_each(|bytes| screen.feed(bytes, 7));
            assert_eq!(screen.finish(), expected, "{size}");
        }
    }

    #[test]
    fn a_line_is_split_at_double_spaces() {
        let line = "shard-4   50.0%  worker-12       17  ██··";
        let found = cells(3, line);
        let places: Vec<(usize, &str)> =
            found.iter().map(|cell| (cell.column, cell.text.as_str())).collect();
        let expected = [(0, "shard-4"), (10, "50.0%"), (17, "worker-12"), (33, "17"), (37, "██··")];
        assert_eq!(places, expected);
        assert!(found.iter().all(|cell| cell.row == 3 && cell.worker == Some(12)));
    }

    #[test]
    fn cells_that_stay_have_one_span() {
        let frames = [frame(0, &["a  x"]), frame(9, &["b  x"]), frame(20, &["b  x  c"])];
        let found = spans(&frames);
        let texts = |span| found[&span].iter().map(|cell| &*cell.text).collect::<Vec<_>>();
        assert_eq!(found.len(), 4);
        assert_eq!(texts((0, Some(1))), ["a"]);
        assert_eq!(texts((0, None)), ["x"]);
        assert_eq!(texts((1, None)), ["b"]);
        assert_eq!(texts((2, None)), ["c"]);
    }

    #[test]
    fn the_end_state_is_visible_without_animation() {
        let svg = picture(&[frame(0, &["worker-1 & more"]), frame(900, &[SUCCESS])]);
        assert!(svg.contains("<tspan class=\"w1\">worker-1</tspan> &amp; more"), "{svg}");
        assert!(svg.contains("<g class=\"f0 h\">") && svg.contains("<g class=\"f1\">"), "{svg}");
    }
}
