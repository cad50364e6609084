//! Looks every second whether the files and devices that are served are still what their paths lead to, and as long as they
//! were: on a thread of its own, since a file system that hangs must hold up nobody else.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use drivers::message_queue::Handle;
use target::config::UnitId;

use super::disk::DiskInfo;
use super::reactor_shard::ReactorShard;

/// How long a file may be another before that is noticed without anybody reading what is missing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What is watched. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaWatch(Arc<Mutex<Vec<Entry>>>);

#[derive(Clone, Debug)]
struct Entry {
    unit: UnitId,
    facts: Weak<DiskInfo>,
    reactor: Handle<ReactorShard>,
}

impl MediaWatch {
    /// Watches a disk for as long as it is served.
    pub(super) fn add(&self, unit: UnitId, facts: &Arc<DiskInfo>, reactor: Handle<ReactorShard>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.facts.strong_count() > 0);
        entries.push(Entry { unit, facts: Arc::downgrade(facts), reactor });
    }

    /// Returns what is known of a disk that is served.
    pub(super) fn find(&self, unit: UnitId) -> Option<Arc<DiskInfo>> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().filter(|entry| entry.unit == unit).find_map(|entry| entry.facts.upgrade())
    }

    /// Starts to look. It ends when the returned sender is dropped.
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
            let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for Entry { unit, facts, reactor } in entries {
                let Some(facts) = facts.upgrade().filter(|facts| !facts.is_withheld()) else { continue };
                if let Err(why) = facts.compare() {
                    // A reactor that has stopped serves nothing.
                    let _ =
                        reactor.post(move |member: &mut ReactorShard, now| member.withhold(now, unit, &why));
                }
            }
        }
    }
}
