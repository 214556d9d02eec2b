//! `scela status --live`: the nodes and jobs of pools on a terminal, drawn again each second.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use nix::unistd;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Gauge, Paragraph, Row, Table};

use super::client;
use super::message::WORDS_CHARS_MAX;
use super::states::Found;
use super::status::{self, NAMES_SHOWN, NodeLine, PoolReport};
use crate::refusal::{Refusal, shown};

/// Milliseconds between two drawings.
const PAUSE_MS: u16 = 1000;
/// How long the rest of a special key may take to arrive, which ssh may send by itself.
const REST_TIME: Duration = Duration::from_millis(100);
/// The most bytes of keys that are read together.
const KEYS_BYTES_MAX: usize = 256;
/// The byte that begins a sequence of a special key, and is the Escape key without one.
const ESCAPE: u8 = 0x1b;
/// The byte of Ctrl-C: a terminal in raw mode makes no signal of it.
const CTRL_C: u8 = 3;
/// The keys, as the last line shows them.
const KEYS: &str = " q: quit   up, down: scroll jobs";

/// Shows pools until the user quits. `read` returns their state.
pub(super) fn run(read: impl Fn() -> Result<Found, Refusal>) -> Result<(), Refusal> {
    let failed = |error: io::Error| Refusal::new(format!("the terminal cannot be used: {error}"), "").of_system();
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Refusal::new("a live view needs a terminal", "without --live, the state is printed once"));
    }
    let mut found = read()?;
    // Block signals: a fatal one would leave the terminal in raw mode.
    let signals = client::signals().map_err(failed)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let (stdin, mut scrolled) = (io::stdin(), 0);
    let shown = 'view: loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &found, scrolled)) {
            // A terminal that has hung up is no error.
            break if matches!(wait(stdin.as_fd(), &signals), Ok(Next::End)) { Ok(()) } else { Err(failed(error)) };
        }
        match wait(stdin.as_fd(), &signals) {
            Err(error) => break Err(failed(error)),
            Ok(Next::End) => break Ok(()),
            Ok(Next::Keys(keys)) => {
                for key in keys {
                    match key {
                        Key::Quit => break 'view Ok(()),
                        Key::Up => scrolled = scrolled.saturating_sub(1),
                        Key::Down => scrolled += 1,
                    }
                }
            }
            Ok(Next::Draw) => match read() {
                Ok(read) => found = read,
                Err(refusal) => break Err(refusal),
            },
        }
        let jobs: usize = found.reports.iter().map(|report| report.jobs.len()).sum();
        scrolled = scrolled.min(jobs.saturating_sub(1));
    };
    // A terminal that cannot be restored is not worth an error. The end of its value would write one, and panic if that fails.
    let _ = terminal.show_cursor();
    let _ = ratatui::try_restore();
    std::mem::forget(terminal);
    shown
}

/// The event that ends a wait, and so the next step.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    /// Keys were typed.
    Keys(Vec<Key>),
    /// The pools are read and drawn again.
    Draw,
    /// A signal has arrived, or the terminal has hung up.
    End,
}

/// A key with a meaning.
#[derive(PartialEq, Eq, Debug)]
enum Key {
    Quit,
    Up,
    Down,
}

/// Waits for keys, a signal, or the next drawing. crossterm would wait for ever at a terminal that has hung up.
fn wait(input: BorrowedFd<'_>, signals: &SignalFd) -> io::Result<Next> {
    let (mut typed, mut rest_until) = (Vec::new(), None);
    loop {
        let pause = rest_until.map_or(PollTimeout::from(PAUSE_MS), rest_pause);
        let mut waited = [input, signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut waited, pause) {
            Ok(0) | Err(Errno::EINTR) if typed.is_empty() => return Ok(Next::Draw),
            Ok(0) => return Ok(Next::Keys(keys(&typed))),
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        let lost = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let has_hung_up = waited[0].revents().is_some_and(|events| events.intersects(lost));
        if has_hung_up || waited[1].any() == Some(true) {
            return Ok(Next::End);
        }
        let mut bytes = [0; KEYS_BYTES_MAX];
        match unistd::read(input, &mut bytes) {
            Ok(0) | Err(Errno::EIO) => return Ok(Next::End),
            Err(Errno::EINTR | Errno::EAGAIN) if typed.is_empty() => return Ok(Next::Draw),
            Err(Errno::EINTR | Errno::EAGAIN) => continue,
            read => typed.extend_from_slice(&bytes[..read?]),
        }
        if !lacks_rest(&typed) || typed.len() >= KEYS_BYTES_MAX {
            return Ok(Next::Keys(keys(&typed)));
        }
        rest_until.get_or_insert_with(|| Instant::now() + REST_TIME);
    }
}

/// Returns how long to wait for the rest of a key.
fn rest_pause(until: Instant) -> PollTimeout {
    PollTimeout::try_from(until.saturating_duration_since(Instant::now())).unwrap_or(PollTimeout::ZERO)
}

/// Returns whether a special key may have begun whose rest is missing.
fn lacks_rest(typed: &[u8]) -> bool {
    let last = typed.iter().rposition(|byte| *byte == ESCAPE).map(|at| &typed[at + 1..]);
    match last {
        Some([b'[' | b'O', special @ ..]) => !special.iter().any(ends_key),
        Some(rest) => rest.is_empty(),
        None => false,
    }
}

/// Returns whether this is the last byte of a special key.
fn ends_key(byte: &u8) -> bool {
    (0x40..=0x7e).contains(byte)
}

/// Returns the keys with a meaning in what was typed.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    loop {
        let (key, left) = match bytes {
            [] => return keys,
            [ESCAPE, b'[' | b'O', special @ ..] => {
                let length = special.iter().position(ends_key).map_or(special.len(), |at| at + 1);
                let (special, left) = special.split_at(length);
                let key = match special {
                    [b'A'] => Some(Key::Up),
                    [b'B'] => Some(Key::Down),
                    _ => None,
                };
                (key, left)
            }
            [ESCAPE] | [ESCAPE, ESCAPE, ..] | [b'q' | CTRL_C, ..] => (Some(Key::Quit), &bytes[1..]),
            // A key with Alt.
            [ESCAPE, _, left @ ..] => (None, left),
            [b'k', left @ ..] => (Some(Key::Up), left),
            [b'j', left @ ..] => (Some(Key::Down), left),
            [_, left @ ..] => (None, left),
        };
        keys.extend(key);
        bytes = left;
    }
}

/// Draws all pools, one below the other, and skips their first `scrolled` jobs. Lists the pools that cannot be asked above the
/// line of keys.
fn draw(frame: &mut Frame<'_>, Found { reports, refused, .. }: &Found, mut scrolled: usize) {
    let heights = [Constraint::Min(0), Constraint::Length(refused.len() as u16), Constraint::Length(1)];
    let [pools, silent, keys] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(Line::from(KEYS).style(Style::new().reversed()), keys);
    let refusals: Vec<Line<'_>> = refused.iter().map(|refusal| Line::from(refusal.to_string()).red()).collect();
    frame.render_widget(Paragraph::new(refusals), silent);
    if reports.is_empty() && refused.is_empty() {
        frame.render_widget(Paragraph::new("there is no pool on this host"), pools);
        return;
    }
    let areas = Layout::vertical(reports.iter().map(|_| Constraint::Fill(1))).split(pools);
    for (report, area) in reports.iter().zip(areas.iter()) {
        draw_pool(frame, report, scrolled, *area);
        scrolled = scrolled.saturating_sub(report.jobs.len());
    }
}

fn draw_pool(frame: &mut Frame<'_>, report: &PoolReport, scrolled: usize, area: Rect) {
    let (mut node_rows, mut reasons) = (Vec::new(), Vec::new());
    for line in status::node_lines(&report.nodes) {
        node_rows.push(node_row(&line));
        if let Some(why) = line.why {
            reasons.push((node_rows.len() as u16, why));
            // The reason takes its place.
            node_rows.push(Row::new([""]));
        }
    }
    let node_height = Constraint::Length(node_rows.len() as u16 + 1);
    let heights = [Constraint::Length(1), Constraint::Length(1), node_height, Constraint::Min(2)];
    let [head, gauge, node_area, job_area] = Layout::vertical(heights).areas(area);
    frame.render_widget(Line::from(status::headline(report)).bold(), head);
    let busy = report.totals.busy;
    let share = f64::from(busy) / f64::from(report.pool.slots.max(1));
    let bar = Gauge::default().ratio(share.min(1.0)).gauge_style(Style::new().fg(Color::Green).bg(Color::DarkGray));
    frame.render_widget(bar.label(format!("{busy} of {} slots busy", report.pool.slots)), gauge);
    let widths = [NAMES_SHOWN as u16, 8, 6, 6, 7, 9].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let heads = ["NODES", "STATE", "SLOTS", "BUSY", "LOAD", "FREE", "JOBS"];
    frame.render_widget(Table::new(node_rows, widths).header(Row::new(heads).bold()), node_area);
    for (row, why) in reasons {
        let place = Rect { y: node_area.y + 1 + row, height: 1, ..node_area };
        if place.y < node_area.bottom() {
            let why = status::cut(&format!("  {why}"), node_area.width.into());
            frame.render_widget(Line::from(why).red(), place);
        }
    }
    let rows = report.jobs.iter().skip(scrolled).map(|job| {
        let state = if job.launcher.is_some() { "runs" } else { "waits" };
        let style = if job.launcher.is_some() { Style::new() } else { Style::new().fg(Color::Yellow) };
        let words = shown(&job.words, WORDS_CHARS_MAX);
        let cells = [
            job.job.to_string(),
            state.to_owned(),
            job.slots.to_string(),
            job.priority.to_string(),
            status::age(job.age_ms),
            words,
        ];
        Row::new(cells).style(style)
    });
    let widths = [8, 6, 6, 9, 8].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let heads = ["JOB", "STATE", "SLOTS", "PRIORITY", "SINCE", "COMMAND"];
    frame.render_widget(Table::new(rows, widths).header(Row::new(heads).bold()), job_area);
}

fn node_row(line: &NodeLine) -> Row<'static> {
    let colour = match line.state {
        "down" => Color::Red,
        "busy" | "mixed" => Color::Green,
        "idle" => Color::Reset,
        _ => Color::Yellow,
    };
    let cells = [
        status::cut(&line.names, NAMES_SHOWN),
        line.state.to_owned(),
        line.slots.to_string(),
        line.busy.to_string(),
        line.load.clone(),
        line.free.clone(),
        line.jobs.clone(),
    ];
    Row::new(cells).style(Style::new().fg(colour))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use nix::sys::signal::SigSet;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::message::NodeReport;
    use super::super::nodes::Health;
    use super::*;

    fn lines(reports: &[PoolReport], scrolled: usize) -> Vec<String> {
        lines_of(&Found { reports: reports.to_vec(), ..Found::default() }, scrolled)
    }

    fn lines_of(found: &Found, scrolled: usize) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(78, 12)).unwrap();
        terminal.draw(|frame| draw(frame, found, scrolled)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        buffer.content.chunks(78).map(line).map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn keys_are_read_from_the_bytes_of_a_terminal() {
        assert_eq!(keys(b"xjk\x1b[B\x1bOA"), [Key::Down, Key::Up, Key::Down, Key::Up]);
        for quits in [&b"q"[..], b"\x03", b"\x1b", b"\x1b\x1b"] {
            assert_eq!(keys(quits).first(), Some(&Key::Quit), "{quits:?}");
        }
        assert_eq!(keys(b"\x1b[1;5A\x1b[15~\x1bx\x1b["), [], "other keys, and a part of one");
    }

    #[test]
    fn a_key_that_arrives_in_pieces_is_one_key() {
        for begun in [&b"\x1b"[..], b"j\x1b", b"\x1b[", b"\x1bO", b"\x1b[1;5"] {
            assert!(lacks_rest(begun), "{begun:?}");
        }
        for whole in [&b"j"[..], b"\x1b[B", b"\x1bOA", b"\x1bx", b"\x1b[1;5Aq", b""] {
            assert!(!lacks_rest(whole), "{whole:?}");
        }
        let signals = SignalFd::new(&SigSet::empty()).unwrap();
        // Each read takes one datagram.
        let (keyboard, terminal) = UnixDatagram::pair().unwrap();
        let read = |pieces: &[&[u8]]| {
            pieces.iter().for_each(|piece| assert_eq!(keyboard.send(piece).unwrap(), piece.len()));
            wait(terminal.as_fd(), &signals).unwrap()
        };
        assert_eq!(read(&[b"\x1b", b"[B"]), Next::Keys(vec![Key::Down]));
        assert_eq!(read(&[b"k\x1b", b"O", b"A"]), Next::Keys(vec![Key::Up, Key::Up]));
        assert_eq!(read(&[b"\x1b"]), Next::Keys(vec![Key::Quit]), "the key Escape, which nothing follows");
    }

    #[test]
    fn the_view_ends_when_its_terminal_hangs_up() {
        let signals = SignalFd::new(&SigSet::empty()).unwrap();
        let (terminal, keyboard) = unistd::pipe().unwrap();
        unistd::write(&keyboard, b"j").unwrap();
        assert_eq!(wait(terminal.as_fd(), &signals).unwrap(), Next::Keys(vec![Key::Down]));
        drop(keyboard);
        assert_eq!(wait(terminal.as_fd(), &signals).unwrap(), Next::End);
    }

    #[test]
    fn the_view_has_nodes_and_jobs() {
        let shown = lines(&[status::example()], 0);
        assert!(shown[0].starts_with("pool night on n1: "), "{shown:?}");
        assert!(shown[1].contains("3 of 4 slots busy"), "{shown:?}");
        assert_eq!(shown[2], "NODES                    STATE    SLOTS  BUSY   LOAD    FREE      JOBS");
        assert_eq!(shown[3], "n1                       busy     4      4      0.50    3.0 GiB   13");
        assert_eq!(shown[4], "JOB      STATE  SLOTS  PRIORITY  SINCE    COMMAND");
        assert_eq!(shown[5], "13       runs   3      0         1 s      -np 3 ./a?[2J");
        assert_eq!(shown[6], "14       waits  3      0         1 s      -np 3 ./a?[2J");
        assert_eq!(shown[11], KEYS);
        assert_eq!(lines(&[status::example()], 1)[5], shown[6]);
        assert_eq!(lines(&[], 0)[0], "there is no pool on this host");
    }

    #[test]
    fn the_view_names_pools_that_cannot_be_asked() {
        let refused = vec![Refusal::new("the pool 'b' does not answer", "")];
        let shown = lines_of(&Found { reports: vec![status::example()], refused, ..Found::default() }, 0);
        assert!(shown[0].starts_with("pool night") && shown[10] == "the pool 'b' does not answer", "{shown:?}");
    }

    #[test]
    fn nodes_that_are_down_have_a_line_with_their_reason() {
        let mut report = status::example();
        let first = report.nodes[0].clone();
        let node = |name: &str, why: &str| NodeReport {
            name: name.to_owned(),
            busy: 0,
            jobs: Vec::new(),
            health: Health::Down(why.to_owned()),
            state: None,
            ..first.clone()
        };
        let long = "1 of 1 host could not be started\n  n3: ".to_owned() + &"a".repeat(100);
        let down = [node("n2", "the keeper was lost"), node("n4", "the keeper was lost"), node("n3", &long)];
        report.nodes.extend(down);
        let shown = lines(&[report.clone()], 0);
        assert_eq!(shown[4], "n[2,4]                   down     4      0      -       -");
        assert_eq!(shown[5], "  the keeper was lost");
        assert_eq!(shown[6], "n3                       down     4      0      -       -");
        assert_eq!(shown[7], format!("  1 of 1 host could not be started: n3: {}…", "a".repeat(37)));
        assert_eq!(shown[8], "JOB      STATE  SLOTS  PRIORITY  SINCE    COMMAND");
        // As many of them as fit.
        report.nodes.extend((5..9).map(|at| node(&format!("n{at}"), &format!("reason {at}"))));
        let shown = lines(&[report], 0);
        assert!(shown[9].starts_with("JOB ") && shown[10].starts_with("13 ") && shown[11] == KEYS, "{shown:?}");
    }

    #[test]
    fn a_long_name_leaves_the_columns_in_their_places() {
        let mut report = status::example();
        report.nodes[0].name = "a".repeat(30);
        assert_eq!(lines(&[report], 0)[3], "aaaaaaaaaaaaaaaaaaaaaaa… busy     4      4      0.50    3.0 GiB   13");
    }
}
