//! What `targe top` shows of the rates: as text below each other, or as lines that fit a screen.

use std::cmp::Ordering;

use super::rates::{LunRate, Rate, Rates, SessionRate};
use super::screen::{Key, Line};
use crate::tables::{Table, show_uptime};

/// The lines above the table: the summary, the keys, and an empty line.
const HEAD: usize = 3;

/// Which table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shown {
    #[default]
    Luns,
    Sessions,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Bytes,
    Commands,
    Name,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Commands,
            Self::Commands => Self::Name,
            Self::Name => Self::Bytes,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "MB/s",
            Self::Commands => "IOPS",
            Self::Name => "name",
        }
    }

    /// Sorts rows that come sorted by name.
    fn sort<T>(self, rows: &mut [T], rate: impl Fn(&T) -> Option<Rate>) {
        let value = |row: &T| match (self, rate(row)) {
            (Self::Name, _) | (_, None) => 0.0,
            (Self::Bytes, Some(rate)) => rate.bytes(),
            (Self::Commands, Some(rate)) => rate.commands,
        };
        rows.sort_by(|a, b| value(b).partial_cmp(&value(a)).unwrap_or(Ordering::Equal));
    }
}

/// What the user chose to see.
#[derive(Debug, Default)]
pub(crate) struct View {
    shown: Shown,
    order: Order,
    /// The first row that is shown.
    first: usize,
    /// Why there is no new sample.
    pub(crate) trouble: Option<String>,
}

impl View {
    pub(crate) fn press(&mut self, key: Key, height: usize) {
        let page = height.saturating_sub(HEAD + 1).max(1);
        match key {
            Key::Switch => {
                self.shown = if self.shown == Shown::Luns { Shown::Sessions } else { Shown::Luns };
                self.first = 0;
            }
            Key::Order => self.order = self.order.next(),
            Key::Up => self.first = self.first.saturating_sub(1),
            Key::Down => self.first += 1,
            Key::PageUp => self.first = self.first.saturating_sub(page),
            Key::PageDown => self.first += page,
            Key::Quit | Key::Nothing => {}
        }
    }

    /// Returns the lines of a screen of this size.
    pub(crate) fn lines(&mut self, rates: Option<&Rates>, width: usize, height: usize) -> Vec<Line> {
        let plain = |text: String| Line { text, is_heading: false };
        let mut lines = Vec::new();
        lines.push(plain(match (&self.trouble, rates) {
            (Some(why), _) => why.lines().collect::<Vec<_>>().join("; "),
            (None, Some(rates)) => summary(rates),
            (None, None) => "the first sample is being taken".to_owned(),
        }));
        let what = if self.shown == Shown::Luns { "LUNs" } else { "sessions" };
        lines.push(plain(format!(
            "{what} by {}   [Tab] LUNs or sessions  [s] order  [arrows, page keys] scroll  [q] quit",
            self.order.name()
        )));
        lines.push(plain(String::new()));
        if let Some(rates) = rates {
            let mut table = match self.shown {
                Shown::Luns => {
                    let mut rows: Vec<&LunRate> = rates.luns.iter().collect();
                    self.order.sort(&mut rows, |row| row.rate);
                    luns(&rows)
                }
                Shown::Sessions => {
                    let mut rows: Vec<&SessionRate> = rates.sessions.iter().collect();
                    self.order.sort(&mut rows, |row| row.rate);
                    sessions(&rows)
                }
            };
            // Names say more than latencies and counts: a narrow screen shows them first.
            match self.shown {
                Shown::Luns => table.fit(width, &[4, 3, 5], &[6]),
                Shown::Sessions => table.fit(width, &[4, 3, 6], &[5, 7]),
            }
            let table = table.to_string();
            let mut rows = table.lines();
            let heading = rows.next().unwrap_or_default();
            lines.push(Line { text: format!("{heading:<width$}"), is_heading: true });
            let rows: Vec<&str> = rows.collect();
            let room = height.saturating_sub(lines.len());
            self.first = self.first.min(rows.len().saturating_sub(room.max(1)));
            lines.extend(rows.iter().skip(self.first).take(room).map(|row| plain((*row).to_owned())));
        }
        lines.truncate(height);
        for line in &mut lines {
            line.text = line.text.chars().map(|c| if c.is_control() { '?' } else { c }).take(width).collect();
        }
        lines
    }
}

/// Returns everything as text.
pub(crate) fn whole(rates: &Rates) -> String {
    let (all, each): (Vec<&LunRate>, Vec<&SessionRate>) =
        (rates.luns.iter().collect(), rates.sessions.iter().collect());
    let sessions = if each.is_empty() { String::new() } else { format!("\n{}", sessions(&each)) };
    format!("{}\n\n{}{sessions}", summary(rates), luns(&all))
}

fn summary(rates: &Rates) -> String {
    let total = &rates.total;
    let mut text = format!(
        "up {}  sessions {}  IOPS {}  read {} MB/s  write {} MB/s",
        show_uptime(rates.uptime_s),
        rates.session_count,
        show(total.commands),
        megabytes(total.read_bytes),
        megabytes(total.write_bytes)
    );
    for (count, what) in [
        (rates.medium_errors, "medium errors"),
        (u64::from(rates.not_ready), "not ready"),
        (rates.bugs, "internal errors"),
    ] {
        if count > 0 {
            text += &format!("  {what} {count}");
        }
    }
    text
}

fn luns(rows: &[&LunRate]) -> Table {
    let mut table =
        Table::new(&["IOPS", "READ MB/s", "WRITE MB/s", "READ µs", "WRITE µs", "ERRORS", "LUN", "MEDIUM"]);
    for row in rows {
        let [commands, read, write] = cells(row.rate);
        let medium = match &row.not_ready {
            Some(why) => format!("{} (not ready: {why})", row.medium),
            None => row.medium.clone(),
        };
        let lun = format!("{}/{}", row.target, row.lun);
        let latency = |mean: Option<f64>| mean.map_or("-".to_owned(), show);
        let (reads, writes) = (latency(row.read_us), latency(row.write_us));
        let errors = row.medium_errors.to_string();
        table.row(&[&commands, &read, &write, &reads, &writes, &errors, &lun, &medium]);
    }
    table
}

fn sessions(rows: &[&SessionRate]) -> Table {
    let mut table =
        Table::new(&["IOPS", "READ MB/s", "WRITE MB/s", "TASKS", "REPAIRED", "INITIATOR", "FROM", "TARGET"]);
    for row in rows {
        let [commands, read, write] = cells(row.rate);
        table.row(&[
            &commands,
            &read,
            &write,
            &row.tasks.to_string(),
            &row.repaired.to_string(),
            &row.initiator,
            if row.from.is_empty() { "-" } else { &row.from },
            row.target.as_deref().unwrap_or("(discovery)"),
        ]);
    }
    table
}

fn cells(rate: Option<Rate>) -> [String; 3] {
    rate.map_or_else(
        || ["-"; 3].map(str::to_owned),
        |rate| [show(rate.commands), megabytes(rate.read_bytes), megabytes(rate.write_bytes)],
    )
}

fn megabytes(bytes: f64) -> String {
    show(bytes / 1e6)
}

/// Returns a number with three digits, or more before the point.
fn show(value: f64) -> String {
    match value {
        none if none <= 0.0 => "0".to_owned(),
        small if small < 9.995 => format!("{small:.2}"),
        some if some < 99.95 => format!("{some:.1}"),
        many => format!("{many:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(count: u16) -> Rates {
        let rate = |at: u16| Rate {
            commands: f64::from(at),
            read_bytes: 1e6,
            write_bytes: f64::from(100 - at) * 1e6,
        };
        Rates {
            uptime_s: 61,
            seconds: 1.0,
            session_count: 1,
            medium_errors: 0,
            not_ready: 1,
            bugs: 0,
            total: rate(5),
            luns: (0..count)
                .map(|lun| LunRate {
                    target: "iqn.a:b".to_owned(),
                    lun,
                    medium: "ram:1M\u{1b}[2J".to_owned(),
                    rate: (lun != 1).then(|| rate(lun)),
                    read_us: (lun == 2).then_some(25.04),
                    write_us: None,
                    medium_errors: 0,
                    not_ready: (lun == 2).then(|| "gone".to_owned()),
                })
                .collect(),
            sessions: Vec::new(),
        }
    }

    fn texts(view: &mut View, rates: &Rates, width: usize, height: usize) -> Vec<String> {
        view.lines(Some(rates), width, height).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.126, "0.13"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (99.96, "100"),
            (123_456.7, "123457"),
        ] {
            assert_eq!(show(value), text);
        }
    }

    #[test]
    fn a_sample_is_text() {
        let text = whole(&rates(3));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "up 1m 1s  sessions 1  IOPS 5.00  read 1.00 MB/s  write 95.0 MB/s  not ready 1");
        assert_eq!(lines[2], "IOPS  READ MB/s  WRITE MB/s  READ µs  WRITE µs  ERRORS  LUN        MEDIUM");
        assert_eq!(lines[4], "-     -          -           -        -         0       iqn.a:b/1  ram:1M?[2J");
        assert_eq!(
            lines[5],
            "2.00  1.00       98.0        25.0     -         0       iqn.a:b/2  ram:1M?[2J (not ready: gone)"
        );
    }

    #[test]
    fn a_screen_never_gets_more_than_it_shows() {
        let rates = rates(50);
        for (width, height) in [(0, 0), (1, 1), (20, 3), (80, 4), (80, 24), (300, 100)] {
            let mut view = View::default();
            for key in [Key::Nothing, Key::PageDown, Key::Switch, Key::Order, Key::Down, Key::Up] {
                view.press(key, height);
                let lines = texts(&mut view, &rates, width, height);
                assert!(lines.len() <= height && lines.iter().all(|line| line.chars().count() <= width));
                assert!(!lines.concat().contains('\u{1b}'));
            }
        }
    }

    #[test]
    fn a_narrow_screen_shows_names() {
        let mut rates = rates(2);
        for row in &mut rates.luns {
            row.target = "iqn.2026-01.com.example.storage:production-database".to_owned();
        }
        rates.sessions = vec![SessionRate {
            initiator: "iqn.2026-01.com.example.hosts:first-host".to_owned(),
            target: Some("iqn.2026-01.com.example.storage:production-database".to_owned()),
            isid: "400001370000".to_owned(),
            from: "192.0.2.144:51234".to_owned(),
            rate: None,
            tasks: 3,
            repaired: 0,
        }];
        for width in [60, 80] {
            let mut view = View::default();
            let luns = texts(&mut view, &rates, width, 24);
            assert!(luns[4].contains("production-database/0"), "{luns:?}");
            view.press(Key::Switch, 24);
            let sessions = texts(&mut view, &rates, width, 24);
            assert!(sessions[4].contains("first-host  "), "{sessions:?}");
            assert!(sessions[4].ends_with("database"), "{sessions:?}");
        }
    }

    #[test]
    fn rows_are_ordered_and_scrolled() {
        let rates = rates(50);
        let mut view = View::default();
        let first = |view: &mut View| {
            texts(view, &rates, 80, 10)[HEAD + 1].split_whitespace().nth(6).map(str::to_owned)
        };
        assert_eq!(first(&mut view).as_deref(), Some("iqn.a:b/0"), "by MB/s");
        view.press(Key::Order, 10);
        assert_eq!(first(&mut view).as_deref(), Some("iqn.a:b/49"), "by IOPS");
        view.press(Key::Order, 10);
        view.press(Key::Down, 10);
        assert_eq!(first(&mut view).as_deref(), Some("iqn.a:b/1"), "by name, one further");
        for _ in 0..100 {
            view.press(Key::PageDown, 10);
        }
        assert_eq!(first(&mut view).as_deref(), Some("iqn.a:b/44"), "the last page");
    }

    #[test]
    fn what_is_wrong_is_shown_in_place_of_the_summary() {
        let mut view = View { trouble: Some("no targe\nis running".to_owned()), ..View::default() };
        assert_eq!(texts(&mut view, &rates(1), 80, 10)[0], "no targe; is running");
    }
}
