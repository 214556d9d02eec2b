//! Decides which texts for standard error are stored, dropped and written next. Pure.

use std::collections::VecDeque;

use super::Kind;

/// Bytes of logs and of steps (`-v`) that wait to be written. Beyond that, the oldest ones are dropped.
pub(super) const LOG_BYTES_MAX: usize = 1 << 20;
/// The same bound for reports. Only thousands of file errors, with a reader that never reads, exceed it.
const REPORT_BYTES_MAX: usize = 16 << 20;
/// Bytes after which one write ends, so that few texts are lost with a process that is killed.
const WRITE_BYTES: usize = 64 * 1024;
/// The characters that clear a progress line: carriage return, erase to the end of the line.
const CLEAR: &str = "\r\x1b[K";

/// Texts of one kind that wait to be written, each with its number.
#[derive(Debug)]
pub(super) struct Texts {
    texts: VecDeque<(u64, Box<[u8]>)>,
    /// The bytes of all of them.
    pub(super) bytes: usize,
    bytes_max: usize,
}

impl Texts {
    const fn new(bytes_max: usize) -> Self {
        Self { texts: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Adds a text. Returns how many lines were dropped for it; the newest text is never dropped.
    fn push(&mut self, number: u64, text: &[u8]) -> u64 {
        self.bytes += text.len();
        self.texts.push_back((number, text.into()));
        let mut dropped = 0;
        while self.bytes > self.bytes_max && self.texts.len() > 1 {
            dropped += self.pop().map_or(0, |text| lines(&text));
        }
        dropped
    }

    fn pop(&mut self) -> Option<Box<[u8]>> {
        let (_, text) = self.texts.pop_front()?;
        self.bytes -= text.len();
        Some(text)
    }

    fn first(&self) -> Option<u64> {
        Some(self.texts.front()?.0)
    }
}

fn lines(text: &[u8]) -> u64 {
    text.split_inclusive(|byte| *byte == b'\n').count() as u64
}

/// A change of the progress line.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Shows this line.
    Show(String),
    /// Removes the line.
    Clear,
}

/// The texts that wait to be written, numbered in order.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) logs: Texts,
    pub(super) reports: Texts,
    /// The last change of the progress line. It replaces an earlier one, and comes after all texts.
    progress: Option<(u64, Change)>,
    /// Whether the cursor is on a progress line after what was taken.
    is_progress_shown: bool,
    /// Lines that were dropped since the last count was written.
    dropped: u64,
    /// The number of the next text or change.
    pub(super) next: u64,
    /// The first error that was not taken.
    error: Option<u64>,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self::bounded(LOG_BYTES_MAX, REPORT_BYTES_MAX)
    }

    const fn bounded(log_bytes_max: usize, report_bytes_max: usize) -> Self {
        Self {
            logs: Texts::new(log_bytes_max),
            reports: Texts::new(report_bytes_max),
            progress: None,
            is_progress_shown: false,
            dropped: 0,
            next: 0,
            error: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Adds a text of whole lines. It takes the place of the progress line.
    pub(super) fn push(&mut self, kind: Kind, text: &[u8]) {
        self.progress.take_if(|(_, change)| *change != Change::Clear);
        let number = self.number();
        let texts = match kind {
            Kind::Log => &mut self.logs,
            Kind::Report | Kind::Error => &mut self.reports,
        };
        if kind == Kind::Error {
            self.error.get_or_insert(number);
        }
        self.dropped += texts.push(number, text);
    }

    /// Replaces the last change of the progress line.
    pub(super) fn change_progress(&mut self, change: Change) {
        self.progress = Some((self.number(), change));
    }

    /// Returns whether a progress line is shown, or is going to be.
    pub(super) fn has_progress(&self) -> bool {
        self.progress.as_ref().map_or(self.is_progress_shown, |(_, change)| *change != Change::Clear)
    }

    /// Appends what is written next to `out`: the count of dropped lines, then texts in order up to [`WRITE_BYTES`], then
    /// the progress line.
    pub(super) fn take(&mut self, out: &mut Vec<u8>) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.leave_progress(out);
            let lines = if dropped == 1 { "line was" } else { "lines were" };
            let text = format!(
                "scela-run: warning: {dropped} {lines} dropped here, because standard error was not read in time\n"
            );
            out.extend_from_slice(text.as_bytes());
        }
        while out.len() < WRITE_BYTES {
            let texts = match (self.logs.first(), self.reports.first()) {
                (Some(log), Some(report)) if log < report => &mut self.logs,
                (_, Some(_)) => &mut self.reports,
                (_, None) => &mut self.logs,
            };
            let Some(text) = texts.pop() else { break };
            self.leave_progress(out);
            out.extend_from_slice(&text);
        }
        if self.logs.first().is_none() && self.reports.first().is_none() {
            match self.progress.take() {
                Some((_, Change::Show(text))) => {
                    out.extend_from_slice(CLEAR.as_bytes());
                    out.extend_from_slice(text.as_bytes());
                    self.is_progress_shown = true;
                }
                Some((_, Change::Clear)) => self.leave_progress(out),
                None => {}
            }
        }
    }

    fn leave_progress(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_progress_shown) {
            out.extend_from_slice(CLEAR.as_bytes());
        }
    }

    /// Returns whether an error was taken since the last call.
    pub(super) fn takes_error(&mut self) -> bool {
        let taken = self.taken();
        self.error.take_if(|number| *number < taken).is_some()
    }

    /// Returns the number before which everything was taken or dropped.
    pub(super) fn taken(&self) -> u64 {
        let progress = self.progress.as_ref().map(|(number, _)| *number);
        [self.logs.first(), self.reports.first(), progress].into_iter().flatten().min().unwrap_or(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &mut Queue) -> String {
        let mut out = Vec::new();
        queue.take(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts_are_taken_in_the_order_of_their_arrival() {
        let mut queue = Queue::new();
        for (kind, text) in [(Kind::Log, "1\n"), (Kind::Report, "2\n"), (Kind::Log, "3\n"), (Kind::Report, "4\n")] {
            queue.push(kind, text.as_bytes());
        }
        assert_eq!(queue.taken(), 0);
        assert_eq!(taken(&mut queue), "1\n2\n3\n4\n");
        assert_eq!((queue.taken(), taken(&mut queue).as_str()), (4, ""));
    }

    #[test]
    fn the_oldest_logs_are_dropped_and_counted_and_no_report_is() {
        let mut queue = Queue::bounded(8, 100);
        queue.push(Kind::Report, b"error\n");
        for number in 0..10 {
            queue.push(Kind::Log, format!("{number}\n.\n").as_bytes());
        }
        queue.push(Kind::Report, b"end\n");
        let text = taken(&mut queue);
        let (count, rest) = text.split_once('\n').unwrap();
        assert!(count.contains("warning: 16 lines were dropped here"), "{count}");
        assert_eq!(rest, "error\n8\n.\n9\n.\nend\n");
        queue.push(Kind::Log, b"more\n");
        assert_eq!(taken(&mut queue), "more\n", "the count is written once");
    }

    #[test]
    fn the_newest_report_is_stored_however_long_it_is() {
        let mut queue = Queue::bounded(4, 4);
        queue.push(Kind::Report, b"a\n");
        queue.push(Kind::Report, b"the final report\n");
        assert_eq!(queue.reports.bytes, 17);
        let text = taken(&mut queue);
        assert!(text.contains(" 1 line was dropped") && text.ends_with("\nthe final report\n"), "{text}");
    }

    #[test]
    fn one_write_is_bounded() {
        let mut queue = Queue::new();
        let line = format!("{}\n", "x".repeat(999));
        (0..100).for_each(|_| queue.push(Kind::Log, line.as_bytes()));
        let first = taken(&mut queue).len();
        assert!((WRITE_BYTES..WRITE_BYTES + line.len()).contains(&first), "{first}");
        assert_eq!(first + taken(&mut queue).len(), 100 * line.len());
    }

    #[test]
    fn a_progress_line_is_replaced_by_what_follows() {
        let mut queue = Queue::new();
        let show = |queue: &mut Queue, text: &str| queue.change_progress(Change::Show(text.to_owned()));
        show(&mut queue, "1 of 3");
        show(&mut queue, "2 of 3");
        assert_eq!(taken(&mut queue), "\r\x1b[K2 of 3");
        show(&mut queue, "3 of 3");
        queue.push(Kind::Log, b"a step\n");
        assert!(queue.has_progress(), "2 of 3 is still on the terminal");
        assert_eq!(taken(&mut queue), "\r\x1b[Ka step\n");
        assert!(!queue.has_progress());
        show(&mut queue, "again");
        assert_eq!(taken(&mut queue), "\r\x1b[Kagain");
        queue.change_progress(Change::Clear);
        assert!(!queue.has_progress());
        assert_eq!(taken(&mut queue), "\r\x1b[K");
        show(&mut queue, "too late");
        queue.change_progress(Change::Clear);
        assert_eq!(taken(&mut queue), "", "the line was never shown");
    }
}
