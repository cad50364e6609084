//! Threads for file operations that wait for a disk.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::files::{FileDone, FileOp, run_to_end};
use crate::waker::Waker;

/// How long a thread without work waits for more before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// How long a dropped reactor waits for the operations that its threads work on. An operation on a disk that
/// hangs ends later, or with the process.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Operations that one thread does one after the other, with their numbers and how many bytes of each are
/// done.
pub(crate) type Job = SmallVec<[(u32, FileOp, usize); 1]>;

/// The threads of one reactor. A thread is started for each job that no idle thread can do, because any
/// thread that works may wait for a disk that hangs. The submitter bounds the number of jobs.
pub(crate) struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
    /// Signals that a thread has ended.
    fewer: Condvar,
    done: Mutex<Vec<(u32, FileDone)>>,
    waker: Arc<Waker>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// How many threads there are, and how many of them wait for a job.
    threads: usize,
    idle: usize,
    stopping: bool,
}

impl Threads {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let shared = Shared {
            jobs: Mutex::default(),
            more: Condvar::new(),
            fewer: Condvar::new(),
            done: Mutex::default(),
            waker,
        };
        let threads = Self { shared: Arc::new(shared) };
        // The last thread stays, so that a system that allows no more threads later delays operations and
        // refuses none.
        if threads.start_one() {
            threads.shared.jobs().threads += 1;
        }
        threads
    }

    /// Submits jobs. Returns those for which there is no thread: the system allows no more, and none is left.
    pub(crate) fn submit(&self, new: Vec<Job>) -> Vec<Job> {
        let mut jobs = self.shared.jobs();
        let count = new.len();
        jobs.waiting.extend(new);
        let missing = jobs.waiting.len().saturating_sub(jobs.idle);
        for _ in 0..missing {
            if !self.start_one() {
                break;
            }
            jobs.threads += 1;
        }
        if jobs.threads == 0 {
            return jobs.waiting.drain(..).collect();
        }
        drop(jobs);
        (0..count).for_each(|_| self.shared.more.notify_one());
        Vec::new()
    }

    /// Takes the finished operations.
    pub(crate) fn take_done(&self) -> Vec<(u32, FileDone)> {
        std::mem::take(&mut *self.shared.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn start_one(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("targe-files".to_owned());
        thread.spawn(move || shared.work()).is_ok()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let deadline = Instant::now() + LETTING_GO;
        let mut jobs = self.shared.jobs();
        jobs.stopping = true;
        self.shared.more.notify_all();
        while jobs.threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.fewer.wait_timeout(jobs, left);
            jobs = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Counts out a thread that panics.
struct Counted<'a>(&'a Shared);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.leave(&mut self.0.jobs());
        }
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let _counted = Counted(self);
        while let Some(job) = self.next() {
            for (number, op, done) in job {
                let done = run_to_end(op, done);
                self.done.lock().unwrap_or_else(PoisonError::into_inner).push((number, done));
                self.waker.wake();
            }
        }
    }

    /// Waits for the next job. Jobs that wait when the reactor ends are still done, since their submitters
    /// may rely on it.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.stopping {
                self.leave(&mut jobs);
                return None;
            }
            jobs.idle += 1;
            let waited = self.more.wait_timeout(jobs, IDLE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            jobs = guard;
            jobs.idle -= 1;
            if timeout.timed_out() && jobs.waiting.is_empty() && jobs.threads > 1 {
                self.leave(&mut jobs);
                return None;
            }
        }
    }

    /// Counts out a thread.
    fn leave(&self, jobs: &mut Jobs) {
        jobs.threads -= 1;
        self.fewer.notify_all();
    }
}
