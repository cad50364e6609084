//! The record of all events of a run in order: as a hash, which must be equal for two runs of one seed, and
//! as lines of text for display.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use base::time::Instant;

/// A trace that all parts of a world write to. Clones share it.
#[derive(Clone, Debug)]
pub struct Trace(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    hash: u64,
    now: Instant,
    lines: VecDeque<String>,
    kept: usize,
    prints: bool,
}

impl Trace {
    /// Starts a trace that keeps its last `kept` lines, and with `prints` prints each line immediately.
    pub fn new(kept: usize, prints: bool) -> Self {
        let hash = 0xcbf2_9ce4_8422_2325;
        Self(Rc::new(RefCell::new(State { hash, now: Instant(0), lines: VecDeque::new(), kept, prints })))
    }

    /// Sets the time.
    pub fn at(&self, now: Instant) {
        let mut state = self.0.borrow_mut();
        state.now = now;
        state.mix(now.0);
    }

    /// Mixes a number into the hash.
    pub fn mix(&self, word: u64) {
        self.0.borrow_mut().mix(word);
    }

    /// Mixes bytes into the hash.
    pub fn mix_bytes(&self, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state.mix(u64::from_le_bytes(*word));
        }
        for byte in rest {
            state.mix(u64::from(*byte));
        }
        state.mix(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// Adds a line. The callers mix its contents into the hash separately. The line is formatted only if it
    /// is kept or printed.
    pub fn say(&self, line: impl FnOnce() -> String) {
        let mut state = self.0.borrow_mut();
        if state.kept == 0 && !state.prints {
            return;
        }
        let line = format!("{:>12.6} {}", micros(state.now) / 1e6, line());
        if state.prints {
            println!("{line}");
        }
        if state.lines.len() >= state.kept {
            state.lines.pop_front();
        }
        state.lines.push_back(line);
    }

    /// Returns the hash of everything that was mixed in so far.
    pub fn hash(&self) -> u64 {
        self.0.borrow().hash
    }

    /// Returns the lines that were kept.
    pub fn lines(&self) -> Vec<String> {
        self.0.borrow().lines.iter().cloned().collect()
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn micros(at: Instant) -> f64 {
    at.0 as f64 / 1e3
}

impl State {
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
