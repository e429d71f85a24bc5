//! The lines that a child prints: whatever bytes they have, and never more of one than fits.

use std::fmt::Write as _;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// The most that is kept of a line.
const LINE_MAX_BYTES: usize = 1 << 20;

/// What a child prints, line by line.
pub(super) struct ChildLines<R> {
    out: R,
    /// What has come of the line.
    line: Vec<u8>,
    /// Bytes of the line that were dropped.
    dropped: u64,
}

impl<R: AsyncBufRead + Unpin> ChildLines<R> {
    pub(super) fn new(out: R) -> Self {
        Self { out, line: Vec::new(), dropped: 0 }
    }

    /// The next line, without its line break; `None` when nothing more comes. What has come of a
    /// line is kept when the call is dropped.
    pub(super) async fn next_line(&mut self) -> Option<String> {
        loop {
            // Who can't be read prints nothing more.
            let came = self.out.fill_buf().await.unwrap_or_default();
            if came.is_empty() {
                let over = self.line.is_empty() && self.dropped == 0;
                // Whoever died inside a word has not said it.
                return (!over).then(|| self.take() + " … (without a line break)");
            }
            let line_break = came.iter().position(|byte| *byte == b'\n');
            let part = &came[..line_break.unwrap_or(came.len())];
            let kept = part.len().min(LINE_MAX_BYTES - self.line.len());
            self.line.extend_from_slice(&part[..kept]);
            self.dropped += (part.len() - kept) as u64;
            let used = part.len() + usize::from(line_break.is_some());
            self.out.consume(used);
            if line_break.is_some() {
                return Some(self.take());
            }
        }
    }

    fn take(&mut self) -> String {
        let line = std::mem::take(&mut self.line);
        let mut text = String::from_utf8_lossy(&line).into_owned();
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let _ = write!(text, " … ({dropped} more bytes of this line)");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(bytes: &[u8]) -> Vec<String> {
        let mut printed = ChildLines::new(bytes);
        let mut lines = Vec::new();
        while let Some(line) = printed.next_line().await {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn a_line_is_what_stands_before_a_line_break_in_any_bytes() {
        let check = async |bytes: &[u8], expected: &[&str]| {
            assert_eq!(lines(bytes).await, expected, "{}", bytes.escape_ascii());
        };
        check(b"", &[]).await;
        check(b"ok\n", &["ok"]).await;
        check(b"ok\n\nok", &["ok", "", "ok … (without a line break)"]).await;
        check(b"\xff\xfe\nok\n", &["\u{fffd}\u{fffd}", "ok"]).await;
    }

    #[tokio::test]
    async fn the_end_of_a_line_that_is_too_long_is_dropped_and_the_next_line_is_whole() {
        let mut bytes = vec![b'x'; LINE_MAX_BYTES + 5];
        bytes.extend_from_slice(b"\nok\n");
        let lines = lines(&bytes).await;
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("x … (5 more bytes of this line)"));
        assert!(lines[0].len() < LINE_MAX_BYTES + 100);
        assert_eq!(lines[1], "ok");
    }
}
