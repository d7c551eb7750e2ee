//! The live view: a loop of reading a record, drawing it, and waiting for a key.
use super::frame::{Frame, Group, bytes, count};
use super::rates::View;
use psitri::{Error, StatsRecord};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Gauge, Paragraph, Sparkline};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Looks that the sparklines remember: more than a terminal is wide.
const HISTORY_LOOKS: usize = 400;
const TITLE_WIDTH: u16 = 28;

/// Rates of the past, newest last, rounded.
#[derive(Default)]
struct History {
    commits: VecDeque<u64>,
    merged_entries: VecDeque<u64>,
    written_bytes: VecDeque<u64>,
}

impl History {
    fn note(&mut self, view: &View) {
        let rates = view.rates.unwrap_or_default();
        for (past, rate) in [
            (&mut self.commits, rates.commits),
            (&mut self.merged_entries, rates.merged_entries),
            (
                &mut self.written_bytes,
                rates.written_bytes + rates.logged_bytes,
            ),
        ] {
            past.push_back(rate.round() as u64);
            if past.len() > HISTORY_LOOKS {
                past.pop_front();
            }
        }
    }
}

/// What is drawn.
struct Screen<'p> {
    path: &'p Path,
    interval: Duration,
    view: View,
    history: History,
    /// Why there is no newer record.
    trouble: Option<String>,
}

/// Draws until the user has enough. The terminal is as it was afterwards, whatever happens.
pub fn run(path: &Path, first: StatsRecord, interval: Duration) -> io::Result<()> {
    let mut screen = Screen {
        path,
        interval,
        view: View::new(first),
        history: History::default(),
        trouble: None,
    };
    let mut terminal = ratatui::try_init()?;
    let result = screen.run(&mut terminal);
    ratatui::try_restore()?;
    result
}

impl Screen<'_> {
    fn run(&mut self, terminal: &mut ratatui::DefaultTerminal) -> io::Result<()> {
        let mut due = Instant::now() + self.interval;
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            let left = due.saturating_duration_since(Instant::now());
            if event::poll(left)?
                && let Event::Key(key) = event::read()?
                && is_quit(key)
            {
                return Ok(());
            }
            if Instant::now() >= due {
                due = Instant::now() + self.interval;
                self.look();
            }
        }
    }

    fn look(&mut self) {
        match StatsRecord::read(self.path) {
            Ok(record) => {
                self.view = self.view.clone().followed_by(record);
                self.history.note(&self.view);
                self.trouble = None;
            }
            Err(Error::NoStatistics { .. }) => {
                self.view.rates = None;
                self.trouble = Some("closed; what was said last:".to_owned());
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        let words = Frame::new(self.path, &self.view);
        let failure_lines = u16::from(words.failure.is_some());
        let [head, failure, lines, bars, groups, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(failure_lines),
            Constraint::Length(5),
            Constraint::Length(2),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let is_bad = words.is_stale || self.trouble.is_some();
        let state = self.trouble.as_deref().unwrap_or(&words.state);
        let state_style = Style::new().fg(if is_bad { Color::Red } else { Color::Green });
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let text = vec![
            Line::styled(format!("psitri top  {}", words.database), bold),
            Line::styled(state.to_owned(), state_style),
        ];
        frame.render_widget(Paragraph::new(text), head);
        if let Some(cause) = &words.failure {
            let text = format!("the last merge or checkpoint failed: {cause}");
            let red = Style::new().fg(Color::Red);
            frame.render_widget(Paragraph::new(Line::styled(text, red)), failure);
        }
        self.draw_rates(frame, lines);
        self.draw_fill(frame, bars);
        draw_groups(frame, groups, &words.groups);
        let text = format!("q: quit   every {:.1} s", self.interval.as_secs_f64());
        let dim = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Paragraph::new(Line::styled(text, dim)), foot);
    }

    fn draw_rates(&self, frame: &mut ratatui::Frame<'_>, area: Rect) {
        let parts: [Rect; 3] = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas(area);
        let shown = |name: &str, past: &VecDeque<u64>, text: fn(u64) -> String| {
            let now = past.back().map_or("-".to_owned(), |now| text(*now));
            format!(" {name} {now} /s ")
        };
        let history = &self.history;
        for (area, past, title, color) in [
            (
                parts[0],
                &history.commits,
                shown("commits", &history.commits, count),
                Color::Cyan,
            ),
            (
                parts[1],
                &history.merged_entries,
                shown("merged", &history.merged_entries, count),
                Color::Magenta,
            ),
            (
                parts[2],
                &history.written_bytes,
                shown("written", &history.written_bytes, bytes),
                Color::Yellow,
            ),
        ] {
            // The newest at the right edge.
            let width = usize::from(area.width.saturating_sub(2));
            let skip = past.len().saturating_sub(width);
            let missing = width - (past.len() - skip);
            let data: Vec<u64> = std::iter::repeat_n(0, missing)
                .chain(past.iter().skip(skip).copied())
                .collect();
            let line = Sparkline::default()
                .data(data)
                .style(Style::new().fg(color))
                .block(Block::new().borders(Borders::ALL).title(title));
            frame.render_widget(line, area);
        }
    }

    fn draw_fill(&self, frame: &mut ratatui::Frame<'_>, area: Rect) {
        let stats = &self.view.record.stats;
        let rows: [Rect; 2] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
        for (row, name, part, whole) in [
            (
                rows[0],
                "active buffer",
                stats.buffer_bytes,
                stats.buffer_bytes_max,
            ),
            (
                rows[1],
                "frozen buffers",
                stats.frozen_buffers,
                stats.frozen_buffers_max,
            ),
        ] {
            let [name_at, bar_at] =
                Layout::horizontal([Constraint::Length(16), Constraint::Min(0)]).areas(row);
            let ratio = (part as f64 / whole.max(1) as f64).clamp(0.0, 1.0);
            let color = match ratio {
                0.0..0.5 => Color::Green,
                0.5..0.9 => Color::Yellow,
                _ => Color::Red,
            };
            frame.render_widget(Paragraph::new(name), name_at);
            let gauge = Gauge::default()
                .ratio(ratio)
                .gauge_style(Style::new().fg(color));
            frame.render_widget(gauge, bar_at);
        }
    }
}

/// The groups, one below the other, in as many columns as there is room for.
fn draw_groups(frame: &mut ratatui::Frame<'_>, area: Rect, groups: &[Group]) {
    let column_count = (area.width / (TITLE_WIDTH * 2)).clamp(1, 3);
    let share = Constraint::Ratio(1, u32::from(column_count));
    let columns = Layout::horizontal(vec![share; usize::from(column_count)]).split(area);
    let line_count: usize = groups.iter().map(|group| group.lines.len() + 1).sum();
    let height = line_count.div_ceil(columns.len());
    let mut texts: Vec<Vec<Line<'_>>> = vec![Vec::new(); columns.len()];
    let mut column = 0;
    for group in groups {
        if texts[column].len() >= height && column + 1 < columns.len() {
            column += 1;
        }
        let title = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        texts[column].push(Line::styled(group.title, title));
        for (name, value) in &group.lines {
            let width = usize::from(TITLE_WIDTH);
            texts[column].push(Line::from(format!("{name:<width$}{value}")));
        }
    }
    for (text, area) in texts.into_iter().zip(columns.iter()) {
        frame.render_widget(Paragraph::new(text), *area);
    }
}

fn is_quit(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            // In raw mode the terminal does not end the process by itself.
            KeyCode::Char('c') => is_control,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::{Terminal, backend::TestBackend};

    fn record(path: &Path) -> StatsRecord {
        loop {
            match StatsRecord::read(path) {
                Err(Error::NoStatistics { .. }) => std::thread::sleep(Duration::from_millis(5)),
                other => return other.expect("a record"),
            }
        }
    }

    fn drawn(screen: &Screen<'_>, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_all_groups_and_fits_any_size() {
        let dir = tempfile::tempdir().expect("a directory");
        let db = psitri::Database::open(dir.path()).expect("opens");
        let mut screen = Screen {
            path: dir.path(),
            interval: Duration::from_secs(1),
            view: View::new(record(dir.path())),
            history: History::default(),
            trouble: None,
        };
        for _ in 0..HISTORY_LOOKS + 10 {
            screen.history.note(&screen.view);
        }
        assert_eq!(screen.history.commits.len(), HISTORY_LOOKS);
        screen.history.commits.push_back(1234);
        let text = drawn(&screen, 180, 40);
        for part in [
            "open in process",
            "commits 1,234 /s",
            "throughput",
            "active buffer",
            "checkpoints",
            "to replay",
            "snapshots and transactions",
            "longest free run",
            "writers waited",
            "q: quit",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        for (width, height) in [(1, 1), (10, 3), (40, 60), (300, 8)] {
            drawn(&screen, width, height);
        }
        screen.look();
        assert!(screen.trouble.is_none());
        drop(db);
        screen.look();
        assert!(drawn(&screen, 100, 40).contains("closed; what was said last"));
    }

    #[test]
    fn only_the_keys_that_are_named_end_it() {
        let key = |code, modifiers| KeyEvent::new(code, modifiers);
        assert!(is_quit(key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(is_quit(key(KeyCode::Esc, KeyModifiers::NONE)));
        assert!(is_quit(key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!is_quit(key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!is_quit(key(KeyCode::Enter, KeyModifiers::NONE)));
    }
}
