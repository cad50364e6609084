//! The thread that writes the log.
//!
//! A write to stderr waits when stderr is a pipe or a socket whose reader does not read. So other threads put
//! their lines into a bounded queue and go on. Lines that do not fit are counted, and the log says how many
//! they were when it is read again.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most lines that wait: ten times what the log admits in a second.
const LINES_MAX: usize = 1000;

/// The most bytes that wait. Peers choose parts of some lines.
const BYTES_MAX: usize = 1 << 20;

/// How long the end of the daemon waits until the last lines are written.
const LAST_LINES: Duration = Duration::from_secs(2);

static WRITER: OnceLock<Queue> = OnceLock::new();

/// Writes the last lines when it is dropped, if stderr takes them.
#[must_use]
#[derive(Debug)]
pub(crate) struct LastLines(());

/// Starts the thread. Until then each thread writes its own lines, and also if the system allows no thread.
///
/// # Errors
/// The error of the system.
pub(crate) fn start() -> io::Result<LastLines> {
    let queue = WRITER.get_or_init(Queue::default);
    let thread = std::thread::Builder::new().name("log".to_owned());
    let started = thread.spawn(|| queue.write_all_to(&mut io::stderr()));
    if started.is_err() {
        queue.state().has_thread = false;
    }
    started.map(|_| LastLines(()))
}

impl Drop for LastLines {
    fn drop(&mut self) {
        write_last_lines();
    }
}

/// Waits until the lines are written, before the process ends.
pub(crate) fn write_last_lines() {
    if let Some(queue) = WRITER.get() {
        queue.flush(LAST_LINES);
    }
}

/// Writes a line, or several.
pub(super) fn write(line: String) {
    let line = match WRITER.get().map(|queue| queue.put(line)) {
        Some(Put::Queued) => return,
        Some(Put::Dropped) => return super::count_dropped(),
        Some(Put::NoThread(line)) => line,
        None => return,
    };
    to_stderr(&line);
}

/// Returns whether lines are to be given to [`write`].
pub(super) fn is_started() -> bool {
    WRITER.get().is_some()
}

/// Writes to stderr, which has no buffer. One call writes whole lines, so that the output of other processes
/// to the same file stands between lines. The daemon goes on serving if the log cannot be written.
pub(super) fn to_stderr(line: &str) {
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    /// Signals a new line.
    more: Condvar,
    /// Signals that all lines are written.
    written: Condvar,
}

#[derive(Debug)]
struct State {
    lines: VecDeque<String>,
    bytes: usize,
    /// How many lines were dropped and are not reported yet.
    dropped: u64,
    is_writing: bool,
    has_thread: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Put {
    Queued,
    Dropped,
    NoThread(String),
}

impl Default for Queue {
    fn default() -> Self {
        let state =
            State { lines: VecDeque::new(), bytes: 0, dropped: 0, is_writing: false, has_thread: true };
        Self { state: Mutex::new(state), more: Condvar::new(), written: Condvar::new() }
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: String) -> Put {
        let mut state = self.state();
        if !state.has_thread {
            return Put::NoThread(line);
        }
        if state.lines.len() >= LINES_MAX || state.bytes.saturating_add(line.len()) > BYTES_MAX {
            state.dropped += 1;
            return Put::Dropped;
        }
        if state.dropped > 0 {
            let report = super::drop_report(std::mem::take(&mut state.dropped));
            state.push(report);
        }
        state.push(line);
        self.more.notify_one();
        Put::Queued
    }

    /// Writes lines for as long as the process lives.
    fn write_all_to(&self, out: &mut dyn Write) {
        loop {
            let line = self.next();
            // What cannot be written is lost, as a line to a terminal that was closed is.
            let _ = out.write_all(line.as_bytes());
        }
    }

    fn next(&self) -> String {
        let mut state = self.state();
        state.is_writing = false;
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.is_writing = true;
                return line;
            }
            if state.dropped > 0 {
                state.is_writing = true;
                return super::drop_report(std::mem::take(&mut state.dropped));
            }
            self.written.notify_all();
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all lines are written, but at most for `patience`. Returns whether they are.
    fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while state.has_thread && (state.is_writing || !state.lines.is_empty() || state.dropped > 0) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.written.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl State {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_log_that_nobody_reads_makes_no_thread_wait_and_says_later_what_it_lost() {
        let (mut reader, mut out) = UnixStream::pair().unwrap();
        let queue: &'static Queue = Box::leak(Box::default());
        std::thread::spawn(move || queue.write_all_to(&mut out));
        // More than the socket and the queue hold.
        let line = |number: usize| format!("{number:06}{}\n", "x".repeat(993));
        let began = Instant::now();
        let results: Vec<Put> = (0..5000).map(|number| queue.put(line(number))).collect();
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        let dropped = results.iter().filter(|result| **result == Put::Dropped).count();
        assert!((1000..5000).contains(&dropped), "{dropped}");
        assert!(!queue.flush(Duration::from_millis(10)), "nobody has read it");
        // The writer makes room for some lines between others that are dropped, so that there can be several
        // reports.
        let reported = |line: &str| -> Option<usize> {
            let (count, _) = line.split_once(" log lines were dropped because the log was not read")?;
            count.rsplit(' ').next()?.parse().ok()
        };
        let (mut text, mut piece) = (String::new(), vec![0; 1 << 16]);
        while text.lines().filter_map(reported).sum::<usize>() < dropped {
            let count = reader.read(&mut piece).unwrap();
            text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        assert!(queue.flush(Duration::from_secs(60)));
        let kept = (0..5000).zip(&results).filter(|(_, result)| **result == Put::Queued);
        let kept: Vec<String> = kept.map(|(number, _)| line(number).trim_end().to_owned()).collect();
        // Lines can have been kept after the last report.
        reader.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        while text.lines().filter(|line| reported(line).is_none()).count() < kept.len()
            || !text.ends_with('\n')
        {
            let count = reader.read(&mut piece).unwrap();
            text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        let written: Vec<&str> = text.lines().filter(|line| reported(line).is_none()).collect();
        assert!(written == kept, "the lines that were kept are in order and whole");
        assert_eq!(text.lines().filter_map(reported).sum::<usize>(), dropped);
        assert_eq!(queue.put("after\n".to_owned()), Put::Queued);
        let count = reader.read(&mut piece).unwrap();
        assert_eq!(&piece[..count], b"after\n");
    }

    #[test]
    fn without_a_thread_each_thread_writes_its_lines() {
        let queue = Queue::default();
        queue.state().has_thread = false;
        assert_eq!(queue.put("x".to_owned()), Put::NoThread("x".to_owned()));
        assert!(queue.flush(Duration::ZERO));
    }
}
