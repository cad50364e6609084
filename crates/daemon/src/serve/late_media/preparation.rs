//! Reads media that become LUKS2 images if they are blank.

use std::path::Path;
use std::time::{Duration, Instant};

use target::units::UnitId;

use super::{LateMedia, LateUnit, Stage, UnreadMedium};
use crate::config::{Medium, Unit};
use crate::mailbox::Sender;
use crate::os_error;
use crate::serve::daemon_event::{ArrivedMedium, DaemonEvent};

/// The most media that are read at a time.
const PREPARATIONS_MAX: usize = 16;

/// The least time between two lines of the log about the progress of one preparation.
const LOG_EVERY: Duration = Duration::from_secs(30);

impl LateMedia {
    /// Adds a unit whose medium is open, and must be read before it can be served.
    pub(in crate::serve) fn add_unread(&self, id: UnitId, unit: &Unit, unread: UnreadMedium) {
        let (unit, why) = (unit.clone(), waiting(&unit.medium));
        self.list().units.insert(id, LateUnit::new(unit, why, Stage::Unread(Box::new(unread))));
    }

    /// Lets media that could not be prepared be opened again, and those whose secret was wrong.
    pub(in crate::serve) fn retry_refused(&self) {
        for late in self.list().units.values_mut() {
            late.unfit = None;
            if matches!(late.stage, Stage::Refused) {
                late.stage = Stage::Absent;
            }
        }
    }

    /// Returns whether a thread has the medium at a path open. It ends soon if the unit was removed.
    pub(in crate::serve) fn is_reading(&self, path: &Path) -> bool {
        self.list().reading.iter().any(|reading| reading == path)
    }

    /// Starts threads for the media that are to be read.
    pub(super) fn prepare_unread(&self, events: &Sender<DaemonEvent>) {
        while let Some((id, number, unit, unread)) = self.next_unread() {
            let (late, events) = (self.clone(), events.clone());
            let path = unit.medium.path().cloned().unwrap_or_default();
            let work = move || late.prepare((id, number), unit, *unread, &events);
            let spawned = std::thread::Builder::new().name("preparation".to_owned()).spawn(work);
            if let Err(error) = spawned {
                self.closed(&path);
                self.cannot_prepare((id, number), &format!("cannot start a thread: {}", os_error(&error)));
            }
        }
    }

    /// Takes a medium that is to be read, unless enough are.
    fn next_unread(&self) -> Option<(UnitId, u64, Unit, Box<UnreadMedium>)> {
        let mut list = self.list();
        if list.reading.len() >= PREPARATIONS_MAX {
            return None;
        }
        let number = list.begun + 1;
        let (id, late) = list.units.iter_mut().find(|(_, late)| matches!(late.stage, Stage::Unread(_)))?;
        let Stage::Unread(unread) = std::mem::replace(&mut late.stage, Stage::Preparing(number)) else {
            return None;
        };
        late.why = preparing(&late.unit.medium, 0);
        let (id, unit) = (*id, late.unit.clone());
        list.begun = number;
        list.reading.extend(unit.medium.path().cloned());
        Some((id, number, unit, unread))
    }

    /// Reads a medium, makes a LUKS2 image of it, and passes it to the main thread.
    fn prepare(
        &self,
        (id, number): (UnitId, u64),
        unit: Unit,
        unread: UnreadMedium,
        events: &Sender<DaemonEvent>,
    ) {
        let UnreadMedium { mut medium, provisional } = unread;
        let path = unit.medium.path().cloned().unwrap_or_default();
        let (label, name) = (&unit.label, path.display());
        let len = medium.unread().map_or(0, |unread| unread.len());
        crate::info!(
            "{label}: {name} has no LUKS2 header; its {len} bytes are read to find out whether it is blank, and its LUN \
             is not ready until then"
        );
        let (mut logged_at, mut logged) = (Instant::now(), 0);
        let prepared = medium.prepare(|percent| {
            if percent >= logged + 10 && logged_at.elapsed() >= LOG_EVERY {
                (logged_at, logged) = (Instant::now(), percent);
                crate::info!("{label}: {}", preparing(&unit.medium, percent));
            }
            self.progress(id, number, &preparing(&unit.medium, percent))
        });
        match prepared {
            Ok(true) => {
                let is_mine = |stage: &Stage| matches!(stage, Stage::Preparing(now) if *now == number);
                if self.advances(id, &unit, is_mine, || Stage::Arriving) {
                    let arrived = ArrivedMedium { id, unit, medium, provisional };
                    // If the main thread has ended, nothing is served any more.
                    let _ = events.send(DaemonEvent::MediumArrived(Box::new(arrived)));
                } else {
                    drop(provisional);
                    drop(medium);
                    // If the unit has other properties now, it is opened again with these.
                    self.reopen(id, number);
                }
                self.closed(&path);
            }
            Ok(false) => {
                crate::info!("{label}: {name} is not wanted any more, and was not changed");
                drop(provisional);
                drop(medium);
                self.closed(&path);
            }
            Err(why) => {
                crate::error!("{label}: {why}; its LUN is not ready; reload the configuration to try again");
                drop(provisional);
                drop(medium);
                self.closed(&path);
                self.cannot_prepare((id, number), &why);
            }
        }
    }

    /// Records how far a preparation is. Returns whether it is to go on.
    fn progress(&self, id: UnitId, number: u64, why: &str) -> bool {
        let mut list = self.list();
        let late = list.preparation(id, number);
        late.map(|late| why.clone_into(&mut late.why)).is_some()
    }

    fn reopen(&self, id: UnitId, number: u64) {
        if let Some(late) = self.list().preparation(id, number) {
            late.stage = Stage::Absent;
        }
    }

    fn cannot_prepare(&self, (id, number): (UnitId, u64), why: &str) {
        if let Some(late) = self.list().preparation(id, number) {
            (late.why, late.stage) = (format!("{}: {why}", late.unit.label), Stage::Refused);
        }
    }

    /// Records that a thread has closed a medium, or has passed it on.
    fn closed(&self, path: &Path) {
        let mut list = self.list();
        if let Some(at) = list.reading.iter().position(|reading| reading == path) {
            list.reading.swap_remove(at);
        }
    }
}

impl super::LateUnits {
    /// Returns the unit of a preparation, if it is still wanted.
    fn preparation(&mut self, id: UnitId, number: u64) -> Option<&mut LateUnit> {
        let late = self.units.get_mut(&id)?;
        matches!(late.stage, Stage::Preparing(now) if now == number).then_some(late)
    }
}

/// Returns the reason of a LUN whose medium is being read.
fn preparing(medium: &Medium, percent: u64) -> String {
    format!("preparing: {percent} % of the {} read", kind(medium))
}

/// Returns the reason of a LUN whose medium is not being read yet.
pub(super) fn waiting(medium: &Medium) -> String {
    format!("preparing: the {} is to be read", kind(medium))
}

const fn kind(medium: &Medium) -> &'static str {
    if matches!(medium, Medium::Block { .. }) { "device" } else { "file" }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{self, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::super::opening::tests::{look, pass_quiet};
    use super::*;
    use crate::luks::blank::{BlankScan, BlankSource};
    use crate::luks::is_image;
    use crate::mailbox::{Receiver, channel};
    use crate::scratch::Scratch;
    use crate::serve::media::tests::unit;
    use crate::serve::media::{self, FileRollback};
    use crate::serve::state::StateDir;

    const LEN: usize = 40 << 20;
    const ID: UnitId = UnitId(7);

    /// A medium whose reads wait for the test. A byte that the test sends is what the next piece holds.
    #[derive(Debug)]
    struct Slow(Receiver<u8>);

    impl BlankSource for Slow {
        fn data_from(&mut self, at: u64) -> io::Result<Option<u64>> {
            Ok(Some(at))
        }

        fn read_at(&mut self, buf: &mut [u8], _: u64) -> io::Result<usize> {
            let byte = self.0.recv().map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            buf.fill(byte);
            Ok(buf.len())
        }
    }

    /// A device of zeros without holes, which is opened as a start opens it.
    struct World {
        scratch: Scratch,
        state: StateDir,
        unit: Unit,
        late: LateMedia,
        events: (Sender<DaemonEvent>, Receiver<DaemonEvent>),
    }

    impl World {
        fn new() -> Self {
            let scratch = Scratch::new();
            let state = StateDir::open(&scratch.path().join("state")).unwrap();
            let secret = scratch.path().join("secret");
            std::fs::write(&secret, "a secret of more than thirty-two bytes").unwrap();
            std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
            let keys = "type = \"file\", path = \"disk.img\", encrypt = \"secret\"";
            let mut disk = std::fs::File::create(scratch.path().join("disk.img")).unwrap();
            for _ in 0..LEN >> 20 {
                disk.write_all(&[0; 1 << 20]).unwrap();
            }
            let unit = unit(scratch.path(), keys);
            Self { scratch, state, unit, late: LateMedia::default(), events: channel() }
        }

        /// Adds the medium, each of whose pieces is read when the test sends it.
        fn add(&self) -> Sender<u8> {
            let mut provisional = FileRollback::default();
            let mut medium = media::open(&self.unit, &self.state, &mut provisional, None).unwrap();
            assert!(medium.unread().is_some() && !is_image(&self.path()), "it is not read whole here");
            let (pieces, slow) = channel();
            medium.reads(BlankScan::new(Slow(slow), 0, LEN as u64));
            self.late.add_unread(ID, &self.unit, UnreadMedium { medium, provisional });
            pieces
        }

        fn path(&self) -> std::path::PathBuf {
            self.scratch.path().join("disk.img")
        }

        fn look(&self) -> bool {
            self.late.look(&self.state, &self.events.0)
        }

        fn reason(&self) -> String {
            self.late.reasons().remove(&ID).unwrap_or_default()
        }

        /// Waits until a thread has done what the test waits for.
        fn wait(&self, is_done: impl Fn(&Self) -> bool) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_done(self) {
                assert!(Instant::now() < deadline, "{:?}", self.late);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    #[test]
    fn a_blank_device_is_read_by_a_thread_of_its_own_and_shows_its_progress() {
        let world = World::new();
        let pieces = world.add();
        assert_eq!(world.reason(), "preparing: the file is to be read");
        assert!(world.late.holds(&world.unit));
        // The thread that looks for media does not wait for the reads.
        assert!(world.look() && world.look());
        assert_eq!(world.reason(), "preparing: 0 % of the file read");
        for _ in 0..10 {
            pieces.send(0).unwrap();
        }
        world.wait(|world| world.reason() == "preparing: 25 % of the file read");
        assert!(!is_image(&world.path()) && world.late.is_reading(&world.path()));
        let obstacle = world.late.obstacle().unwrap();
        assert!(obstacle.ends_with(": preparing: 25 % of the file read"), "{obstacle}");
        for _ in 10..LEN >> 20 {
            pieces.send(0).unwrap();
        }
        world.wait(|world| !world.late.is_reading(&world.path()));
        let Some(DaemonEvent::MediumArrived(arrived)) = world.events.1.try_iter().next() else {
            panic!("nothing arrives")
        };
        assert!(arrived.id == ID && arrived.unit == world.unit && arrived.medium.unread().is_none());
        assert!(is_image(&world.path()));
        world.late.served(ID);
        assert!(!world.look() && world.late.reasons() == BTreeMap::new());
    }

    #[test]
    fn a_device_with_data_is_not_changed_and_read_again_after_a_reload() {
        let world = World::new();
        let pieces = world.add();
        assert!(world.look());
        pieces.send(0).unwrap();
        pieces.send(1).unwrap();
        world.wait(|world| !world.late.is_reading(&world.path()) && world.reason().contains("holds data"));
        assert!(!is_image(&world.path()) && world.events.1.try_iter().next().is_none());
        assert!(world.look() && world.reason().contains("holds data"), "it is not read again and again");
        world.late.retry_refused();
        assert!(look(&world.late, &world.state, &world.events.0));
        pass_quiet(&world.late);
        assert!(look(&world.late, &world.state, &world.events.0) && world.look());
        // This time the file itself is read.
        world.wait(|world| world.events.1.try_iter().next().is_some());
    }

    #[test]
    fn removing_the_lun_stops_the_preparation_and_changes_nothing() {
        let world = World::new();
        let pieces = world.add();
        assert!(world.look());
        pieces.send(0).unwrap();
        world.wait(|world| world.reason().contains(" 2 %"));
        world.late.keep(&[], |_| None);
        assert!(world.late.is_reading(&world.path()), "it holds its lock until it notices");
        pieces.send(0).unwrap();
        world.wait(|world| !world.late.is_reading(&world.path()));
        assert!(!is_image(&world.path()) && world.events.1.try_iter().next().is_none());
        // Another reload can add it again: the lock is free.
        drop(world.add());
    }
}
