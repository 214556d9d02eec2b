//! `scela status --live`: the nodes and jobs of pools on a terminal, drawn again each second.

use std::io::{self, IsTerminal};
use std::time::Duration;

use nla::core::printable;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Gauge, Paragraph, Row, Table};

use super::client;
use super::message::WORDS_CHARS_MAX;
use super::status::{self, NodeLine, PoolReport};
use crate::refusal::{Refusal, shown};

/// How often the view is drawn.
const PAUSE: Duration = Duration::from_secs(1);
/// The keys, as the last line shows them.
const KEYS: &str = " q: quit   up, down: scroll jobs";

/// Shows pools until the user quits. `read` returns their state.
pub(super) fn run(read: impl Fn() -> Result<Vec<PoolReport>, Refusal>) -> Result<(), Refusal> {
    let failed = |error: io::Error| Refusal::new(format!("the terminal cannot be used: {error}"), "").of_system();
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Refusal::new("a live view needs a terminal", "without --live, the state is printed once"));
    }
    let mut reports = read()?;
    // One that ended this process would leave the terminal as it is now.
    let signals = client::signals().map_err(failed)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut scrolled = 0;
    let shown = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &reports, scrolled)) {
            break Err(failed(error));
        }
        if matches!(signals.read_signal(), Ok(Some(_))) {
            break Ok(());
        }
        match next_key() {
            Err(error) => break Err(failed(error)),
            Ok(Some(Key::Quit)) => break Ok(()),
            Ok(Some(Key::Up)) => scrolled = scrolled.saturating_sub(1),
            Ok(Some(Key::Down)) => scrolled += 1,
            Ok(None) => match read() {
                Ok(read) => reports = read,
                Err(refusal) => break Err(refusal),
            },
        }
        let jobs: usize = reports.iter().map(|report| report.jobs.len()).sum();
        scrolled = scrolled.min(jobs.saturating_sub(1));
    };
    // A terminal that cannot be restored is not worth an error.
    let _ = ratatui::try_restore();
    shown
}

/// A key with a meaning.
enum Key {
    Quit,
    Up,
    Down,
}

/// Waits for a key. Returns `None` once the view is to be drawn again.
fn next_key() -> io::Result<Option<Key>> {
    if !event::poll(PAUSE)? {
        return Ok(None);
    }
    let Event::Key(key) = event::read()? else { return Ok(None) };
    Ok(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        _ => None,
    })
}

/// Draws all pools, one below the other, without their first `scrolled` jobs.
fn draw(frame: &mut Frame<'_>, reports: &[PoolReport], mut scrolled: usize) {
    let [pools, keys] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Line::from(KEYS).style(Style::new().reversed()), keys);
    if reports.is_empty() {
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
    let nodes = status::node_lines(&report.nodes);
    let heights =
        [Constraint::Length(1), Constraint::Length(1), Constraint::Length(nodes.len() as u16 + 1), Constraint::Min(2)];
    let [head, gauge, node_area, job_area] = Layout::vertical(heights).areas(area);
    frame.render_widget(Line::from(status::headline(report)).bold(), head);
    let busy = report.totals.busy;
    let share = f64::from(busy) / f64::from(report.pool.slots.max(1));
    let bar = Gauge::default().ratio(share.min(1.0)).gauge_style(Style::new().fg(Color::Green).bg(Color::DarkGray));
    frame.render_widget(bar.label(format!("{busy} of {} slots busy", report.pool.slots)), gauge);
    let widths = [24, 8, 6, 6, 7, 9].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let heads = ["NODES", "STATE", "SLOTS", "BUSY", "LOAD", "FREE", "JOBS"];
    let table = Table::new(nodes.iter().map(node_row), widths).header(Row::new(heads).bold());
    frame.render_widget(table, node_area);
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
        printable(&line.names).to_string(),
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
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn lines(reports: &[PoolReport], scrolled: usize) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(78, 12)).unwrap();
        terminal.draw(|frame| draw(frame, reports, scrolled)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        buffer.content.chunks(78).map(line).map(|line| line.trim_end().to_owned()).collect()
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
}
