//! Eventfds that another process signals: a medium that is a process has completions.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use base::state_machine::MediumId;
use rustix::io::{ReadWriteFlags, preadv2};

use crate::engine::Poller;

/// The numbers of the engine from here on are those of signals. Ports count from zero.
const FIRST: u32 = 1 << 31;

/// The largest number of a signal. The one above it is that of the socket that reports interface changes.
const LAST: u32 = u32::MAX - 1;

/// The offset that reads from the current position (preadv2(2)).
const CURRENT_POSITION: u64 = u64::MAX;

/// Takes the signals of an eventfd. It never waits: the process on the other side may have made the
/// descriptor a blocking one, and have read it first.
pub fn consume(event: &OwnedFd) {
    let mut count = [0; 8];
    let mut parts = [IoSliceMut::new(&mut count)];
    // It fails when there is nothing to read: then nothing is lost.
    let _ = preadv2(event, &mut parts, CURRENT_POSITION, ReadWriteFlags::NOWAIT);
}

/// The eventfds of a reactor.
#[derive(Default)]
pub(crate) struct Signals {
    table: BTreeMap<u32, (MediumId, Rc<OwnedFd>)>,
    /// How many numbers were given out.
    count: u32,
    raised: Vec<MediumId>,
}

impl Signals {
    /// Watches the eventfd of a medium, instead of the one that it had before.
    pub(crate) fn watch<E: Poller + ?Sized>(
        &mut self,
        engine: &mut E,
        medium: MediumId,
        event: OwnedFd,
    ) -> io::Result<()> {
        self.unwatch(engine, medium);
        let number = FIRST.saturating_add(self.count).min(LAST);
        self.count = self.count.saturating_add(1);
        let event = Rc::new(event);
        engine.watch(number, event.clone())?;
        self.table.insert(number, (medium, event));
        Ok(())
    }

    /// Forgets the eventfd of a medium.
    pub(crate) fn unwatch<E: Poller + ?Sized>(&mut self, engine: &mut E, medium: MediumId) {
        let is_its = |(number, (known, _)): (&u32, &(MediumId, _))| (*known == medium).then_some(*number);
        if let Some(number) = self.table.iter().find_map(is_its) {
            self.table.remove(&number);
            engine.unwatch(number);
        }
    }

    /// Records that a descriptor is readable. Returns whether it is one of these.
    pub(crate) fn note(&mut self, watch: u32) -> bool {
        if let Some((medium, event)) = self.table.get(&watch) {
            // Before the medium is asked, so that no signal is overlooked.
            consume(event);
            if !self.raised.contains(medium) {
                self.raised.push(*medium);
            }
        }
        (FIRST..=LAST).contains(&watch)
    }

    /// Returns a medium that was signalled since it was last returned.
    pub(crate) fn next_raised(&mut self) -> Option<MediumId> {
        self.raised.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    use super::*;

    #[test]
    fn the_signals_of_an_eventfd_that_blocks_are_taken_without_waiting() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (ended, end) = channel();
        std::thread::spawn(move || {
            // Somebody else has read it.
            consume(&event);
            write(&event, &7_u64.to_ne_bytes()).unwrap();
            consume(&event);
            rustix::io::ioctl_fionbio(&event, true).unwrap();
            ended.send(read(&event, &mut [0_u8; 8][..])).unwrap();
        });
        let left = end.recv_timeout(Duration::from_secs(60)).expect("a read waits for a signal");
        assert_eq!(left, Err(rustix::io::Errno::AGAIN));
    }
}
