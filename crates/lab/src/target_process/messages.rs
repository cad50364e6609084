//! The last messages of a child.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The last lines that are kept for an error.
const LINES_KEPT: usize = 8;

/// Beyond so many bytes, older lines are left out of an error.
const TEXT_MAX: usize = 300;

/// The most bytes of a line that are kept.
const LINE_MAX: u64 = 512;

/// How long to wait for the rest of the messages of a child that has ended.
const REST_WITHIN: Duration = Duration::from_millis(500);

/// Reads the messages of a child until it ends, and keeps the last ones.
#[derive(Debug)]
pub(super) struct Messages {
    kept: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
}

impl Messages {
    pub(super) fn collect(from: impl Read + Send + 'static) -> Self {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let shared = Arc::clone(&kept);
        let reader = std::thread::spawn(move || read_lines(from, &shared));
        Self { kept, reader }
    }

    /// Returns the last messages in one line.
    pub(super) fn last(&self) -> String {
        // After the end of a child, its last messages are in the pipe for a moment.
        let deadline = Instant::now() + REST_WITHIN;
        while !self.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(super::POLL_INTERVAL);
        }
        self.so_far()
    }

    /// Returns the last messages that have been read, in one line.
    pub(super) fn so_far(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest messages say most of why a child has ended.
        let mut left = TEXT_MAX;
        let is_told = |line: &&String| {
            let fits = left > 0;
            left = left.saturating_sub(line.len());
            fits
        };
        let mut lines: Vec<&str> = kept.iter().rev().take_while(is_told).map(String::as_str).collect();
        lines.reverse();
        if lines.is_empty() { "it printed no message".to_owned() } else { lines.join("; ") }
    }
}

fn read_lines(from: impl Read, kept: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        if text.is_empty() {
            continue;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(text);
        if kept.len() > LINES_KEPT {
            kept.pop_front();
        }
    }
}
