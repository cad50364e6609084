//! Checks every second whether the path of each served file or device still leads to it, and whether its
//! length is still the served one. It measures what the files take from their file systems, too. This runs on
//! threads of its own, since a file system that hangs must not delay other threads: the thread that looks at
//! a medium which does not answer stays with it, and another one goes on with the rest.

use crate::mailbox::{Receiver, RecvTimeoutError, Sender, channel};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use target::units::UnitId;

use backends::open::FileIdentity;
use device::space_threshold::SpaceThreshold;
use drivers::message_queue::Handle;

use super::file_systems::FileSystemUse;
use super::media::disk::DiskInfo;
use super::reactor_shard::ReactorShard;

/// The polling interval: how long a replaced or truncated file can go unnoticed if no initiator reads the
/// missing part.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long the watch waits for a medium before it goes on with the others.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many polls there are for each measurement of file systems.
const POLLS_PER_MEASUREMENT: u32 = 5;

/// The watched disks. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaWatch(Arc<Mutex<BTreeMap<UnitId, Vec<Entry>>>>);

/// A disk of a unit. A drive can have several: the last operations of a disc can end after the next one is
/// in.
#[derive(Clone, Debug)]
struct Entry {
    facts: Weak<DiskInfo>,
    reactor: Handle<ReactorShard>,
}

impl Entry {
    fn is_served(&self) -> bool {
        self.facts.strong_count() > 0
    }
}

impl MediaWatch {
    /// Watches a disk for as long as it is served.
    pub(super) fn add(&self, unit: UnitId, facts: &Arc<DiskInfo>, reactor: Handle<ReactorShard>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = entries.entry(unit).or_default();
        entries.retain(Entry::is_served);
        entries.push(Entry { facts: Arc::downgrade(facts), reactor });
    }

    /// Returns the properties of a served disk: of the disc that is in a drive.
    pub(super) fn find(&self, unit: UnitId) -> Option<Arc<DiskInfo>> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let served = entries.get(&unit)?.iter().rev().filter_map(|entry| entry.facts.upgrade());
        let mut present = served.filter(|facts| !facts.has_left());
        present.next()
    }

    /// Returns whether a writable disc was taken out of its drive whose image is at a path, and is not closed
    /// yet.
    pub(super) fn is_leaving(&self, path: &Path) -> bool {
        let all = self.served().into_iter().filter_map(|(_, entry)| entry.facts.upgrade());
        all.into_iter().any(|facts| facts.has_left() && !facts.read_only && facts.is_at(path))
    }

    /// Returns the disks that are served, and forgets the others.
    fn served(&self) -> Vec<(UnitId, Entry)> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, disks| disks.iter().any(Entry::is_served));
        let all = entries.iter().flat_map(|(unit, disks)| disks.iter().map(|disk| (*unit, disk.clone())));
        all.filter(|(_, disk)| disk.is_served()).collect()
    }

    /// Starts the thread of the watch. It ends when the returned sender is dropped.
    pub(super) fn start(&self) -> io::Result<Sender<()>> {
        let (sender, ended) = channel();
        let media_watch = self.clone();
        std::thread::Builder::new()
            .name("media-watch".to_owned())
            .spawn(move || media_watch.poll_until(&ended))
            .map(|_| sender)
    }

    fn poll_until(&self, ended: &Receiver<()>) {
        let (mut until_measured, mut thresholds) = (0, Thresholds::new());
        let mut looker = Looker::new();
        while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let is_measuring = until_measured == 0;
            until_measured = if is_measuring { POLLS_PER_MEASUREMENT - 1 } else { until_measured - 1 };
            for (unit, Entry { facts, reactor }) in self.served() {
                let Some(facts) = facts.upgrade() else { continue };
                let (place, found) = ((facts.path.clone(), facts.identity), Arc::downgrade(&facts));
                looker.look(place, move || {
                    if is_measuring {
                        facts.measure_space();
                    }
                    if !facts.is_watched() {
                        return;
                    }
                    let Err(why) = facts.compare() else { return };
                    // A reactor that has stopped serves no disk, so an error is ignored.
                    let _ = reactor.post(move |member: &mut ReactorShard, now| {
                        member.withhold_served(now, unit, &found, &why);
                    });
                });
            }
            if is_measuring {
                self.report_thresholds(&mut thresholds);
            }
        }
    }

    /// Tells units whose file system has another threshold than before, or has come to or left it.
    fn report_thresholds(&self, known: &mut Thresholds) {
        let measured: Vec<_> = self
            .served()
            .into_iter()
            .filter_map(|(unit, entry)| {
                let facts = entry.facts.upgrade()?;
                Some((unit, entry, facts.space()?))
            })
            .collect();
        let systems = FileSystemUse::of(measured.iter().map(|(_, _, space)| space));
        let mut now = Thresholds::new();
        for (unit, Entry { facts, reactor }, (_, space)) in measured {
            let Some(system) = systems.iter().find(|system| system.device == space.system) else { continue };
            let before = known.get(&unit).filter(|(served, _)| served.ptr_eq(&facts)).map(|(_, told)| *told);
            let threshold = system.threshold();
            if before != Some(threshold) {
                // A reactor that has stopped serves no disk, so an error is ignored.
                let _ = reactor.post(move |member: &mut ReactorShard, now| {
                    member.set_space_threshold(now, unit, threshold);
                });
            }
            now.insert(unit, (facts, threshold));
        }
        *known = now;
    }
}

/// Looks at media on a thread that is left to a medium which does not answer.
struct Looker {
    /// Takes what the present thread does next.
    looks: Sender<Look>,
    /// The numbers of the looks that have ended.
    ended: (Sender<u64>, Receiver<u64>),
    /// How many looks have begun.
    begun: u64,
    /// The media that do not answer, by the numbers of their looks.
    silent: BTreeMap<u64, MediumPlace>,
    patience: Duration,
}

type Look = Box<dyn FnOnce() + Send>;

/// The path and the identity of a medium.
type MediumPlace = (PathBuf, FileIdentity);

impl Looker {
    fn new() -> Self {
        Self { looks: thread(), ended: channel(), begun: 0, silent: BTreeMap::new(), patience: PATIENCE }
    }

    /// Looks at a medium, unless it, or another file of its file system, does not answer.
    fn look(&mut self, place: MediumPlace, look: impl FnOnce() + Send + 'static) {
        while let Ok(number) = self.ended.1.try_recv() {
            self.answered(number);
        }
        if self.silent.values().any(|silent| is_alike(silent, &place)) {
            return;
        }
        self.begun += 1;
        let (number, ended) = (self.begun, self.ended.0.clone());
        let run = Box::new(move || {
            look();
            // The watch may have ended.
            let _ = ended.send(number);
        });
        // Without a thread nothing ends, and the next look gets another one.
        let _ = self.looks.send(run);
        let deadline = Instant::now() + self.patience;
        loop {
            match self.ended.1.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(ended) if ended == number => return,
                Ok(other) => self.answered(other),
                Err(_) => break,
            }
        }
        crate::warning!(
            "{} does not answer: until it does, nobody notices that it, or another file of its file system, is replaced \
             or truncated",
            place.0.display()
        );
        self.silent.insert(number, place);
        self.looks = thread();
    }

    fn answered(&mut self, number: u64) {
        if let Some((path, _)) = self.silent.remove(&number) {
            crate::info!("{} answers again", path.display());
        }
    }
}

/// Returns whether two media are in one file system, or have one path.
fn is_alike(a: &MediumPlace, b: &MediumPlace) -> bool {
    match (a.1, b.1) {
        (FileIdentity::File(a, _), FileIdentity::File(b, _)) => a == b,
        _ => a.0 == b.0,
    }
}

/// Starts a thread that looks at media until the sender is dropped.
fn thread() -> Sender<Look> {
    let (sender, looks) = channel::<Look>();
    let run = move || looks.into_iter().for_each(|look| look());
    // If there is none, sending fails.
    let _ = std::thread::Builder::new().name("media-look".to_owned()).spawn(run);
    sender
}

/// What units were told last of the storage that they share, and the disk that they had then.
type Thresholds = BTreeMap<UnitId, (Weak<DiskInfo>, SpaceThreshold)>;

#[cfg(test)]
mod tests {
    use base::state_machine::MediumId;
    use drivers::config::{Config, EngineChoice};
    use drivers::reactor::Reactor;

    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::disc;

    #[test]
    fn a_medium_that_does_not_answer_delays_no_other_one() {
        let mut looker = Looker { patience: Duration::from_secs(5), ..Looker::new() };
        let place = |system, path: &str| (PathBuf::from(path), FileIdentity::File(system, 7));
        let (looked, seen) = channel::<&str>();
        let look = |name| {
            let looked = looked.clone();
            move || looked.send(name).unwrap()
        };
        let (answer, hangs) = channel::<()>();
        looker.look(place(1, "/hangs"), move || {
            let _ = hangs.recv();
        });
        looker.look(place(1, "/same"), look("same"));
        looker.look(place(2, "/healthy"), look("healthy"));
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["healthy"]);
        drop(answer);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !looker.silent.is_empty() && Instant::now() < deadline {
            looker.look(place(2, "/healthy"), || ());
        }
        looker.look(place(1, "/same"), look("same"));
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["same"]);
    }

    #[test]
    fn a_disc_that_has_left_its_drive_is_not_found_there_and_leaves_until_it_is_closed() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disc.iso");
        crate::disc_image::create(&path, "bd-re", Some(1 << 20)).unwrap();
        let config = Config { engine: EngineChoice::Epoll, ..Config::default() };
        let reactor = Reactor::<ReactorShard>::new(&config).unwrap();
        let image = disc::open(&path, false).unwrap().expect("a file");
        let disc = image.place(reactor.files(), MediumId(1), "drive");
        let (watch, unit) = (MediaWatch::default(), UnitId(1));
        watch.add(unit, &disc.info(), reactor.handle());
        assert!(watch.find(unit).is_some() && !watch.is_leaving(&path));
        disc.info().leave();
        assert!(watch.find(unit).is_none() && watch.is_leaving(&path));
        assert!(!disc.info().is_watched());
        drop(disc);
        assert!(!watch.is_leaving(&path));
    }
}
