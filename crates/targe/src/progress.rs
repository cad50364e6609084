//! Shows the progress of a long command, on a terminal only.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the line is redrawn.
const EVERY: Duration = Duration::from_millis(200);

/// The cells of the bar.
const CELLS: u64 = 30;
const CELLS_LEN: usize = 30;

/// A line on stderr that shows how much is done.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    start: Instant,
    last: Instant,
    done: u64,
    total: Option<u64>,
}

impl Progress {
    /// Starts the line. `total` is the number of bytes to process, if that is known.
    pub(crate) fn new(total: Option<u64>) -> Self {
        let now = Instant::now();
        Self { shown: std::io::stderr().is_terminal(), start: now, last: now, done: 0, total }
    }

    /// Records that `bytes` more are done.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if self.shown && self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            eprint!("\r\x1b[K{}", line(self.done, self.total, self.start.elapsed()));
            let _ = std::io::stderr().flush();
        }
    }

    /// Ends the line and prints the total.
    pub(crate) fn finish(self, verb: &str) {
        let (took, done) = (self.start.elapsed(), self.done);
        let clear = if self.shown { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{verb} {done} bytes in {:.1} s, {}/s", took.as_secs_f64(), rate(done, took));
    }
}

impl Drop for Progress {
    /// Clears the line for the next message.
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// A line on stderr that shows how much of a time has passed, on a terminal only. Dropping this clears it.
#[derive(Debug)]
pub(crate) struct TimeBar(Option<(Arc<AtomicBool>, JoinHandle<()>)>);

impl TimeBar {
    /// Starts the line.
    pub(crate) fn start(total: Duration) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let (ended, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let end = Arc::clone(&ended);
        let draw = move || {
            while !end.load(Ordering::Acquire) {
                eprint!("\r\x1b[K{}", time_line(start.elapsed(), total));
                let _ = std::io::stderr().flush();
                std::thread::park_timeout(EVERY);
            }
            eprint!("\r\x1b[K");
        };
        // Without a thread there is no line.
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(draw).ok();
        Self(thread.map(|thread| (ended, thread)))
    }
}

impl Drop for TimeBar {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.0.take() {
            ended.store(true, Ordering::Release);
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn time_line(passed: Duration, total: Duration) -> String {
    let share = |of: f64| (of * passed.as_secs_f64() / total.as_secs_f64().max(1e-9)).min(of);
    let full = "#".repeat(CELLS_LEN).chars().take(whole(share(to_f64(CELLS)))).collect::<String>();
    let left = total.saturating_sub(passed).as_secs_f64();
    format!("[{full:<CELLS_LEN$}] {:3.0} % {left:.0} s left", share(100.0).floor())
}

/// Returns the whole part of a number from 0 to the cells of the bar.
fn whole(cells: f64) -> usize {
    (1..=CELLS).filter(|cell| to_f64(*cell) <= cells).count()
}

fn line(done: u64, total: Option<u64>, took: Duration) -> String {
    let mut text = String::new();
    if let Some(total) = total.filter(|total| *total > 0) {
        let share = |of: u64| {
            u64::try_from(u128::from(done.min(total)) * u128::from(of) / u128::from(total)).unwrap_or(0)
        };
        let full = usize::try_from(share(CELLS)).unwrap_or(0);
        let cells = usize::try_from(CELLS).unwrap_or(0);
        // Writing to a string does not fail.
        let _ = write!(text, "[{}{}] {:3} % ", "#".repeat(full), " ".repeat(cells - full), share(100));
        if done > 0 && done < total {
            let left = took.as_secs_f64() * to_f64(total - done) / to_f64(done);
            let _ = write!(text, "{left:.0} s left ");
        }
    }
    let _ = write!(text, "{} at {}/s", amount(to_f64(done)), rate(done, took));
    text
}

fn rate(bytes: u64, took: Duration) -> String {
    amount(to_f64(bytes) / took.as_secs_f64().max(1e-9))
}

/// Formats a number of bytes in the largest unit that leaves it above one.
pub(crate) fn amount(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = units[0];
    for next in &units[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") }
}

/// Turns a count into a float for display: more than 53 bits are not shown anyway.
#[allow(clippy::cast_precision_loss, reason = "for display only")]
pub(crate) const fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_time_is_full_at_its_end() {
        let ten = Duration::from_secs(10);
        let bar = |cells: usize| format!("[{}{}]", "#".repeat(cells), " ".repeat(30 - cells));
        assert_eq!(time_line(Duration::ZERO, ten), format!("{}   0 % 10 s left", bar(0)));
        assert_eq!(time_line(Duration::from_millis(5_000), ten), format!("{}  50 % 5 s left", bar(15)));
        assert_eq!(time_line(Duration::from_secs(60), ten), format!("{} 100 % 0 s left", bar(30)));
        assert_eq!(time_line(Duration::ZERO, Duration::ZERO), format!("{}   0 % 0 s left", bar(0)));
    }

    #[test]
    fn a_line_tells_share_rate_and_what_is_left() {
        let ten = Duration::from_secs(10);
        let text = line(1 << 30, Some(4 << 30), ten);
        assert_eq!(
            text,
            format!("[{}{}]  25 % 30 s left 1.0 GiB at 102.4 MiB/s", "#".repeat(7), " ".repeat(23))
        );
        assert_eq!(line(2048, None, ten), "2.0 KiB at 205 B/s");
        assert_eq!(line(5, Some(0), ten), "5 B at 0 B/s");
    }
}
