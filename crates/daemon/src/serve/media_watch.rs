//! Checks every second whether the path of each served file or device still leads to it, and whether its
//! length is still the served one. The checks run on a thread of their own, since a file system that hangs
//! must not delay other threads.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use target::units::UnitId;

use drivers::message_queue::Handle;

use super::disk::DiskInfo;
use super::reactor_shard::ReactorShard;

/// The polling interval: how long a replaced or truncated file can go unnoticed if no initiator reads the
/// missing part.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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
        while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            for (unit, Entry { facts, reactor }) in self.served() {
                let Some(facts) = facts.upgrade().filter(|facts| facts.is_watched()) else { continue };
                if let Err(why) = facts.compare() {
                    let served = Arc::downgrade(&facts);
                    // A reactor that has stopped serves no disk, so an error is ignored.
                    let _ = reactor.post(move |member: &mut ReactorShard, now| {
                        member.withhold_served(now, unit, &served, &why);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::state_machine::MediumId;
    use drivers::config::{Config, EngineChoice};
    use drivers::reactor::Reactor;

    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::discs;

    #[test]
    fn a_disc_that_has_left_its_drive_is_not_found_there_and_leaves_until_it_is_closed() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disc.iso");
        crate::disc_image::create(&path, "bd-re", Some(1 << 20)).unwrap();
        let config = Config { engine: EngineChoice::Epoll, ..Config::default() };
        let reactor = Reactor::<ReactorShard>::new(&config).unwrap();
        let image = discs::open(&path, false).unwrap().expect("a file");
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
