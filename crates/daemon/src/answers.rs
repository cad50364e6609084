//! Work on media that may not answer: a file system that hangs keeps the thread that calls it. So the work on
//! each directory has a thread of its own, and the caller waits for a limited time. A link belongs to the
//! directory that it leads to: a folder of links to several file systems hangs only where one of these does.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::mailbox::{Receiver, Sender, channel};

/// How long the main thread waits for all media together that it looks at.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The most threads that the work of one call begins with. If there are more directories, some share a
/// thread. As many again can follow links.
const THREADS_MAX: usize = 256;

/// How many links are followed one after the other, as by the kernel.
const LINKS_MAX: u32 = 40;

/// How long a caller waits for pieces of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// For all of them together.
    Whole(Duration),
    /// Since the last one has ended, so that many pieces may take long together.
    Each(Duration),
}

/// What a medium shares with others that can only hang together: its directory. Devices share none.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    name: PathBuf,
    /// The medium, if a link can be in its place.
    path: Option<PathBuf>,
    /// How many links led here.
    links: u32,
}

impl Place {
    /// Returns the place of a medium, as far as its path shows it.
    pub(crate) fn of(path: &Path) -> Self {
        Self { name: directory(path), path: Some(path.to_owned()), links: 0 }
    }

    /// Returns a place that is no directory. Links are not followed.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: PathBuf::from(name), path: None, links: 0 }
    }

    /// Returns its name: places with one name are one place.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the place that a medium has if a link is at its path and leads out of this place. Reads the
    /// link, which waits if this place hangs.
    fn leads_to(&self) -> Option<Self> {
        // Each device has a place of its own.
        let mut path = self.path.clone().filter(|path| !path.starts_with("/dev"))?;
        for links in self.links + 1..=LINKS_MAX {
            let target = path.read_link().ok()?;
            path = path.parent()?.join(target);
            let name = directory(&path);
            if name != self.name {
                return Some(Self { name, path: Some(path), links });
            }
        }
        None
    }
}

/// Work at one place, divided by where links lead.
pub(crate) struct DividedWork<T> {
    /// The work on media that are at the place.
    pub(crate) here: Vec<T>,
    /// The work on media that are elsewhere because a link leads there, by the name of the other place.
    pub(crate) elsewhere: BTreeMap<PathBuf, Vec<(Place, T)>>,
}

/// Divides work at one place by where links lead. Waits if this place hangs.
pub(crate) fn follow_links<T>(work: Vec<(Place, T)>) -> DividedWork<T> {
    let (mut here, mut elsewhere) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for (place, work) in work {
        match place.leads_to() {
            None => here.push(work),
            Some(other) => elsewhere.entry(other.name.clone()).or_default().push((other, work)),
        }
    }
    DividedWork { here, elsewhere }
}

/// Returns the directory of a file, or the path of a device, without `..`.
fn directory(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if plain.file_name().is_some() => _ = plain.pop(),
            Component::ParentDir if plain.has_root() => {}
            Component::CurDir => {}
            component => plain.push(component),
        }
    }
    match plain.parent() {
        Some(parent) if !plain.starts_with("/dev") => parent.to_owned(),
        _ => plain,
    }
}

/// Runs pieces of work, each with the path of its medium. Those for one directory run on one thread, one
/// after the other; a link counts for the directory that it leads to. Returns the results of those that have
/// ended `within` a time, in the order of the work; `None` stands for the others, whose threads go on until
/// the one that hangs has ended, and drop its result.
pub(crate) fn of<T: Send + 'static>(
    work: impl IntoIterator<Item = (PathBuf, impl FnOnce() -> T + Send + 'static)>,
    within: Duration,
) -> Vec<Option<T>> {
    let work = work.into_iter().map(|(path, work)| (Place::of(&path), work));
    of_or_late(work, Wait::Whole(within), |_, result| drop(result))
}

/// Runs pieces of work in the same way, each with its [`Place`]. Each result is either returned, or passed to
/// `late` on the thread of the work, with its place in the order. `late` gets `None` for a piece that did not
/// begin before the caller ceased to wait: it does not begin any more.
pub(crate) fn of_or_late<T: Send + 'static>(
    work: impl IntoIterator<Item = (Place, impl FnOnce() -> T + Send + 'static)>,
    wait: Wait,
    late: impl Fn(usize, Option<T>) + Clone + Send + Sync + 'static,
) -> Vec<Option<T>> {
    let mut results: Vec<Option<T>> = Vec::new();
    let mut places = BTreeMap::<PathBuf, Vec<_>>::new();
    for (at, (place, work)) in work.into_iter().enumerate() {
        results.push(None);
        places.entry(place.name.clone()).or_default().push((place, (at, work)));
    }
    let (running, count) = (results.len(), places.len().clamp(1, THREADS_MAX));
    let mut threads: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for (number, work) in places.into_values().enumerate() {
        if let Some(thread) = threads.get_mut(number % count) {
            thread.push(work);
        }
    }
    let (done, ended) = channel();
    let runner = Arc::new(Runner { done: Mutex::new(Some(done)), late, more: AtomicUsize::new(THREADS_MAX) });
    for work in threads {
        let work = work.into_iter().map(|work| Group { work, is_final: false }).collect();
        // Without a thread the work does not answer either.
        for (at, _) in runner.spawn(work).into_iter().flat_map(|group| group.work).map(|(_, piece)| piece) {
            runner.end(at, None);
        }
    }
    collect(&mut results, &ended, running, wait);
    runner.done.lock().unwrap_or_else(PoisonError::into_inner).take();
    // What has ended in between.
    for (at, result) in ended.try_iter() {
        if let Some(place) = results.get_mut(at) {
            *place = result;
        }
    }
    results
}

/// A piece of work, and its place in the order.
type Piece<F> = (usize, F);

/// The place of a piece of work in the order, and its result. `None` stands for a piece that did not begin.
type Outcome<T> = (usize, Option<T>);

/// The work at one place.
struct Group<F> {
    work: Vec<(Place, Piece<F>)>,
    /// Whether no thread is left for links: the work is done where it is.
    is_final: bool,
}

/// What the threads of one call share.
struct Runner<T, L> {
    /// The channel of results, as long as the caller waits.
    done: Mutex<Option<Sender<Outcome<T>>>>,
    late: L,
    /// How many more threads may follow links.
    more: AtomicUsize,
}

impl<T, L> Runner<T, L>
where
    T: Send + 'static,
    L: Fn(usize, Option<T>) + Send + Sync + 'static,
{
    /// Starts a thread for some groups. Returns them if there is none.
    fn spawn<F>(self: &Arc<Self>, groups: Vec<Group<F>>) -> Vec<Group<F>>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        // A thread that is not started drops what it was to run.
        let groups = Arc::new(Mutex::new(groups));
        let take = |groups: &Mutex<Vec<Group<F>>>| {
            std::mem::take(&mut *groups.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let (runner, of_thread) = (Arc::clone(self), Arc::clone(&groups));
        let run = move || take(&of_thread).into_iter().for_each(|group| runner.run(group));
        match std::thread::Builder::new().name("medium".to_owned()).spawn(run) {
            Ok(_) => Vec::new(),
            Err(_) => take(&groups),
        }
    }

    /// Does the work at a place, and lets other threads do what is elsewhere.
    fn run<F: FnOnce() -> T + Send + 'static>(self: &Arc<Self>, Group { work, is_final }: Group<F>) {
        if is_final {
            work.into_iter().for_each(|(_, piece)| self.work(piece));
            return;
        }
        let DividedWork { here, elsewhere } = follow_links(work);
        let mut left = Vec::new();
        for work in elsewhere.into_values() {
            let take = |more: usize| more.checked_sub(1);
            let is_free = self.more.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
            let group = vec![Group { work, is_final: false }];
            left.extend(if is_free { self.spawn(group) } else { group });
        }
        here.into_iter().for_each(|piece| self.work(piece));
        left.into_iter().for_each(|group| self.run(Group { is_final: true, ..group }));
    }

    fn work<F: FnOnce() -> T>(&self, (at, work): Piece<F>) {
        let is_wanted = self.done.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.end(at, is_wanted.then(work));
    }

    /// Passes a result to the caller if it still waits, else to `late`.
    fn end(&self, at: usize, result: Option<T>) {
        // While this is locked, the caller does not cease to wait.
        let waiting = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*waiting, result) {
            (Some(done), Some(result)) => drop(done.send((at, Some(result)))),
            (done, result) => {
                // The caller does not wait for it.
                done.iter().for_each(|done| drop(done.send((at, None))));
                drop(waiting);
                (self.late)(at, result);
            }
        }
    }
}

fn collect<T: Send + 'static>(
    results: &mut [Option<T>],
    ended: &Receiver<Outcome<T>>,
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
            *place = result;
        }
        if matches!(wait, Wait::Each(_)) {
            begun = Instant::now();
        }
    }
}

/// Runs one piece of work in the same way.
pub(crate) fn of_one<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    within: Duration,
) -> Option<T> {
    let work = [(Place::named("one"), work)];
    of_or_late(work, Wait::Whole(within), |_, result| drop(result)).pop().flatten()
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
        // Long enough for the other threads to begin on a busy machine.
        assert_eq!(of(work, Duration::from_secs(5)), expected);
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
            (Place::named(place), work)
        });
        let work: Vec<_> = work.collect();
        let found = of_or_late(work, Wait::Each(Duration::from_secs(3)), move |at, result| {
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
    fn a_link_belongs_to_the_directory_that_it_leads_to() {
        let folder = std::env::temp_dir().join(format!("targe-answers-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("links")).unwrap();
        let link = |name: &str, target: &str| {
            std::os::unix::fs::symlink(target, folder.join("links").join(name)).unwrap();
        };
        // The directories need not be there.
        link("hangs", "../one/disk");
        link("again", "hangs");
        link("other", folder.join("two/disk").to_str().unwrap());
        link("device", "/dev/null");
        link("circle", "circle");
        let (release, hangs) = channel::<()>();
        let mut hangs = Some(hangs);
        let names = ["hangs", "again", "other", "device", "circle", "plain"];
        let work: Vec<_> = (0..)
            .zip(names)
            .map(|(number, name)| {
                let hangs = hangs.take();
                let work = move || {
                    if let Some(hangs) = hangs {
                        let _ = hangs.recv();
                    }
                    number
                };
                (folder.join("links").join(name), work)
            })
            .collect();
        assert_eq!(of(work, Duration::from_millis(500)), [None, None, Some(2), Some(3), Some(4), Some(5)]);
        drop(release);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_directory_of_a_path_has_no_parents_in_it() {
        for (path, expected) in [
            ("/a/b/disk", "/a/b"),
            ("/a/b/../c/./disk", "/a/c"),
            ("/srv/../dev/sdb", "/dev/sdb"),
            ("/../disk", "/"),
            ("disk", ""),
            ("../../disk", "../.."),
        ] {
            assert_eq!(directory(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn very_many_directories_share_threads() {
        let work =
            (0..3 * THREADS_MAX).map(|number| (PathBuf::from(format!("/{number}/disk")), move || number));
        let results = of(work, Duration::from_secs(60));
        assert!(results.into_iter().eq((0..3 * THREADS_MAX).map(Some)));
    }
}
