//! What experiments print: the progress, and where the report is.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::experiment::{LabError, Progress};
use lab::report::{Ended, Report};

use crate::{Failure, print, shell};

/// How often the line is redrawn.
const EVERY: Duration = Duration::from_millis(200);

/// The most characters of a line: a longer one would wrap, and could not be redrawn.
const WIDTH: usize = 79;

/// A line on stderr that shows the progress of an experiment, on a terminal only.
#[derive(Debug)]
pub(super) struct ProgressLine {
    shown: bool,
    start: Instant,
    last: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal(), start: Instant::now(), last: None }
    }

    /// Shows the progress, unless the line was redrawn a moment ago.
    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        if self.shown && self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            eprint!("\r\x1b[K{}", line(progress, self.start.elapsed()));
            let _ = std::io::stderr().flush();
        }
    }

    /// Clears the line for the next message.
    pub(super) fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// Returns the line: the share that is done, the time left, and what is being done.
fn line(progress: &Progress<'_>, took: Duration) -> String {
    let percent = progress.done.saturating_mul(100).checked_div(progress.total).unwrap_or(0);
    let mut text = format!("{percent:3} % ");
    let done = u32::try_from(progress.done).unwrap_or(u32::MAX);
    let left = u32::try_from(progress.total.saturating_sub(progress.done)).unwrap_or(u32::MAX);
    if let Some(one) = took.checked_div(done) {
        let left = one.saturating_mul(left).as_secs();
        // Writing to a string does not fail.
        let _ = write!(text, "{}:{:02} left  ", left / 60, left % 60);
    }
    text += progress.what;
    text.chars().take(WIDTH).collect()
}

/// Returns the command line of this process, quoted for a shell.
pub(super) fn command_line() -> String {
    let arguments = std::env::args().skip(1).map(|word| shell::quoted(&word));
    std::iter::once("targe".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Returns the directory of a report that the user gave no directory: `targe-lab-digests-20261124-001500`.
pub(super) fn default_directory(experiment: &str, timestamp: &str) -> PathBuf {
    let time: String = timestamp.chars().filter(char::is_ascii_digit).collect();
    let (date, time) = time.split_at_checked(8).unwrap_or((&time, ""));
    PathBuf::from(format!("targe-lab-{experiment}-{date}-{time}"))
}

/// Returns the failure of an experiment without a report.
pub(super) fn failure(why: LabError) -> Failure {
    match why {
        LabError::Plan(text) => Failure::Misused(text),
        other => Failure::Failed(other.to_string()),
    }
}

/// Writes the report, prints its summary and where it is. A run that ended early is a failure.
pub(super) fn publish(report: &Report, directory: &Path) -> Result<(), Failure> {
    let cannot = |why| Failure::Failed(format!("cannot write the report to {}: {why}", directory.display()));
    report.write(directory).map_err(cannot)?;
    print(&format!(
        "{}\n\nThe report: {}\n",
        report.summary.join("\n"),
        directory.join("report.html").display()
    ));
    match &report.ended {
        Ended::Complete => Ok(()),
        Ended::Early(why) => Err(Failure::Failed(format!(
            "the run ended early: {why}; the report covers what was measured before"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_and_time_left() {
        let progress = Progress { done: 25, total: 100, what: "4K reads" };
        assert_eq!(line(&progress, Duration::from_secs(50)), " 25 % 2:30 left  4K reads");
        let start = Progress { done: 0, what: &"x".repeat(200), ..progress };
        assert_eq!(line(&start, Duration::ZERO).len(), WIDTH);
    }

    #[test]
    fn a_directory_is_named_by_its_time() {
        let name = default_directory("digests", "2026-11-24T00:15:00Z");
        assert_eq!(name, PathBuf::from("targe-lab-digests-20261124-001500"));
    }
}
