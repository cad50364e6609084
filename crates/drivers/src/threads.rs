//! A thread pool for file operations that would block the reactor.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::files::{FileDone, FileOp, run_to_end};
use crate::waker::Waker;

/// The threads of one reactor. Each is started when it is first needed and ends with the reactor.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    running: Vec<JoinHandle<()>>,
    max: usize,
}

struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
    done: Mutex<Vec<(u32, FileDone)>>,
    waker: Arc<Waker>,
}

/// The jobs that wait. The submitters bound their number: a medium submits no more operations than its
/// clients may have in flight.
struct Jobs {
    waiting: VecDeque<(u32, FileOp, usize)>,
    idle: usize,
    stopping: bool,
}

impl Threads {
    pub(crate) fn new(waker: Arc<Waker>, max: usize) -> Self {
        let jobs = Jobs { waiting: VecDeque::new(), idle: 0, stopping: false };
        let shared = Shared { jobs: Mutex::new(jobs), more: Condvar::new(), done: Mutex::default(), waker };
        Self { shared: Arc::new(shared), running: Vec::new(), max }
    }

    /// Submits an operation of which `done` bytes are done.
    ///
    /// # Errors
    /// The operation, if no thread runs and none could be started.
    pub(crate) fn submit(&mut self, number: u32, op: FileOp, done: usize) -> Result<(), (FileOp, usize)> {
        let short = {
            let jobs = self.shared.jobs();
            jobs.idle <= jobs.waiting.len()
        };
        if short && self.running.len() < self.max {
            self.start_one();
        }
        if self.running.is_empty() {
            return Err((op, done));
        }
        self.shared.jobs().waiting.push_back((number, op, done));
        self.shared.more.notify_one();
        Ok(())
    }

    /// Takes the finished operations.
    pub(crate) fn take_done(&self) -> Vec<(u32, FileDone)> {
        std::mem::take(&mut *self.shared.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn start_one(&mut self) {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("targe-files".to_owned());
        if let Ok(handle) = thread.spawn(move || shared.work()) {
            self.running.push(handle);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.jobs().stopping = true;
        self.shared.more.notify_all();
        for thread in self.running.drain(..) {
            // A thread that panicked has printed why; nothing else can be done.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn jobs(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((number, op, done)) = self.next() {
            let done = run_to_end(op, done);
            self.done.lock().unwrap_or_else(PoisonError::into_inner).push((number, done));
            self.waker.wake();
        }
    }

    /// Waits for the next job. Jobs that wait when the reactor ends are still done, since their submitters
    /// may rely on it.
    fn next(&self) -> Option<(u32, FileOp, usize)> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.stopping {
                return None;
            }
            jobs.idle += 1;
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.idle -= 1;
        }
    }
}
