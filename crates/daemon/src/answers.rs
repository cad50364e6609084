//! Work on media that may not answer: a file system that hangs keeps the thread that calls it. So the work on
//! each directory has a thread of its own, and the caller waits for a limited time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::mailbox::{Receiver, Sender, channel};

/// How long the main thread waits for all media together that it looks at.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The most threads for the work of one call. If there are more directories, some share a thread.
const THREADS_MAX: usize = 256;

/// How long a caller waits for pieces of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// For all of them together.
    Whole(Duration),
    /// Since the last one has ended, so that many pieces may take long together.
    Each(Duration),
}

/// The end of a channel of results, as long as the caller waits.
type ResultSender<T> = Arc<Mutex<Option<Sender<(usize, T)>>>>;

/// Runs pieces of work, each with the path of its medium. Those for one directory run on one thread, one
/// after the other. Returns the results of those that have ended `within` a time, in the order of the work;
/// `None` stands for the others, whose threads go on until the one that hangs has ended, and drop its result.
pub(crate) fn of<T: Send + 'static>(
    work: impl IntoIterator<Item = (PathBuf, impl FnOnce() -> T + Send + 'static)>,
    within: Duration,
) -> Vec<Option<T>> {
    let work = work.into_iter().map(|(path, work)| (place(&path), work));
    of_or_late(work, Wait::Whole(within), |_, result| drop(result))
}

/// Runs pieces of work in the same way, each with its [`place`]. Each result is either returned, or passed to
/// `late` on the thread of the work, with its place in the order. `late` gets `None` for a piece that did not
/// begin before the caller ceased to wait: it does not begin any more.
pub(crate) fn of_or_late<T: Send + 'static>(
    work: impl IntoIterator<Item = (PathBuf, impl FnOnce() -> T + Send + 'static)>,
    wait: Wait,
    late: impl Fn(usize, Option<T>) + Clone + Send + 'static,
) -> Vec<Option<T>> {
    let mut results: Vec<Option<T>> = Vec::new();
    let mut places = BTreeMap::<PathBuf, Vec<_>>::new();
    for (at, (place, work)) in work.into_iter().enumerate() {
        results.push(None);
        places.entry(place).or_default().push((at, work));
    }
    let count = places.len().clamp(1, THREADS_MAX);
    let mut threads: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for (number, work) in places.into_values().enumerate() {
        if let Some(thread) = threads.get_mut(number % count) {
            thread.extend(work);
        }
    }
    let (done, ended) = channel();
    let done: ResultSender<T> = Arc::new(Mutex::new(Some(done)));
    let mut running = 0;
    for work in threads {
        let (done, late, pieces) = (Arc::clone(&done), late.clone(), work.len());
        let numbers: Vec<usize> = work.iter().map(|(at, _)| *at).collect();
        let unstarted = late.clone();
        let run = move || {
            for (at, work) in work {
                let is_wanted = done.lock().unwrap_or_else(PoisonError::into_inner).is_some();
                let result = is_wanted.then(work);
                // While this is locked, the caller does not cease to wait.
                let waiting = done.lock().unwrap_or_else(PoisonError::into_inner);
                match (&*waiting, result) {
                    (Some(done), Some(result)) => drop(done.send((at, result))),
                    (_, result) => {
                        drop(waiting);
                        late(at, result);
                    }
                }
            }
        };
        // Without a thread the work does not answer either.
        match std::thread::Builder::new().name("medium".to_owned()).spawn(run) {
            Ok(_) => running += pieces,
            Err(_) => numbers.into_iter().for_each(|at| unstarted(at, None)),
        }
    }
    collect(&mut results, &ended, running, wait);
    done.lock().unwrap_or_else(PoisonError::into_inner).take();
    // What has ended in between.
    for (at, result) in ended.try_iter() {
        if let Some(place) = results.get_mut(at) {
            *place = Some(result);
        }
    }
    results
}

fn collect<T: Send + 'static>(
    results: &mut [Option<T>],
    ended: &Receiver<(usize, T)>,
    mut running: usize,
    wait: Wait,
) {
    let mut begun = Instant::now();
    while running > 0 {
        let (Wait::Whole(within) | Wait::Each(within)) = wait;
        let left = (begun + within).saturating_duration_since(Instant::now());
        let Ok((at, result)) = ended.recv_timeout(left) else { return };
        running -= 1;
        if let Some(place) = results.get_mut(at) {
            *place = Some(result);
        }
        if matches!(wait, Wait::Each(_)) {
            begun = Instant::now();
        }
    }
}

/// Returns what media share that can only hang together: the directory of a file. Devices share none.
pub(crate) fn place(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !path.starts_with("/dev") => parent.to_owned(),
        _ => path.to_owned(),
    }
}

/// Runs one piece of work in the same way.
pub(crate) fn of_one<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    within: Duration,
) -> Option<T> {
    of([(PathBuf::new(), work)], within).pop().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_delays_nothing_but_its_directory_and_the_wait() {
        let (release, hangs) = channel::<()>();
        let mut hangs = Some(hangs);
        let paths = ["/a/0", "/b/1", "/b/2", "/c/3", "/dev/4", "/dev/5"];
        let work = (0..).zip(paths).map(|(number, path)| {
            let hangs = hangs.take_if(|_| number == 1);
            let work = move || {
                if let Some(hangs) = hangs {
                    let _ = hangs.recv();
                }
                number
            };
            (PathBuf::from(path), work)
        });
        let work: Vec<_> = work.collect();
        let expected = [Some(0), None, None, Some(3), Some(4), Some(5)];
        assert_eq!(of(work, Duration::from_millis(500)), expected);
        drop(release);
        assert_eq!(of_one(|| 5, Duration::from_secs(60)), Some(5));
    }

    #[test]
    fn a_result_that_comes_late_is_passed_on_and_what_has_not_begun_does_not_begin() {
        let (release, hangs) = channel::<()>();
        let (told, late) = channel();
        let mut hangs = Some(hangs);
        let work = ["a", "a", "b"].into_iter().zip(0..).map(|(place, number)| {
            let hangs = hangs.take();
            let work = move || {
                if let Some(hangs) = hangs {
                    let _ = hangs.recv();
                }
                number
            };
            (PathBuf::from(place), work)
        });
        let work: Vec<_> = work.collect();
        let found = of_or_late(work, Wait::Each(Duration::from_millis(300)), move |at, result| {
            told.send((at, result)).unwrap();
        });
        assert_eq!(found, [None, None, Some(2)]);
        assert_eq!(late.try_iter().count(), 0);
        drop(release);
        let second = Duration::from_secs(60);
        assert_eq!(late.recv_timeout(second), Ok((0, Some(0))));
        assert_eq!(late.recv_timeout(second), Ok((1, None)));
    }

    #[test]
    fn very_many_directories_share_threads() {
        let work =
            (0..3 * THREADS_MAX).map(|number| (PathBuf::from(format!("/{number}/disk")), move || number));
        let results = of(work, Duration::from_secs(60));
        assert!(results.into_iter().eq((0..3 * THREADS_MAX).map(Some)));
    }
}
