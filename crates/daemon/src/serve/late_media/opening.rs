//! Opens media that can have come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use target::units::UnitId;

use super::{KeyEvidence, LateMedia, Stage, UnreadMedium, is_missing, missing_secret, server};
use crate::answers::{self, ANSWER_MAX, DividedWork, Place};
use crate::config::{Medium, Unit};
use crate::mailbox::Sender;
use crate::os_error;
use crate::serve::daemon_event::{ArrivedMedium, DaemonEvent};
use crate::serve::media::{self, FileRollback, OpenMedium};
use crate::serve::mount::Mount;
use crate::serve::served_size;
use crate::serve::state::StateDir;
use crate::serve::write_trace::WriteTrace;

/// The most threads that open media and have begun less than [`ANSWER_MAX`] ago.
const OPENINGS_MAX: usize = 16;

/// The most threads that open media, with those that wait for media which do not answer.
const THREADS_MAX: usize = 256;

/// The most media of one server that are opened at a time.
const OPENINGS_MAX_ALIKE: usize = 2;

/// How long a file or device that has come must stay as it is before it is served: somebody may still be
/// restoring it.
const QUIET: Duration = Duration::from_secs(10);

/// A file whose last change is so old is not being restored. Most files come with their file system.
const OLD: Duration = Duration::from_secs(60);

/// Opens a medium with the checks of a start. A missing file is created on this mount only.
///
/// # Errors
/// Why it cannot be served yet.
fn open(
    unit: &Unit,
    state: &StateDir,
    creatable_on: Option<&Mount>,
) -> Result<(OpenMedium, FileRollback), Obstacle> {
    if let Some(why) = missing_secret(unit) {
        return Err(why.into());
    }
    served_size::check_restored(unit, state)?;
    served_size::check_unfinished(unit, state)?;
    let created = match &unit.medium {
        Medium::File { path, .. } if is_missing(path) => Some(path),
        _ => None,
    };
    let expect_mount = || match created {
        Some(path) if creatable_on.is_none() || direct_mount(path).as_ref() != creatable_on => {
            Err(format!("{}: {} does not exist; restart targe to create it", unit.label, path.display()))
        }
        _ => Ok(()),
    };
    expect_mount()?;
    let mut provisional = FileRollback::default();
    match media::open(unit, state, &mut provisional, None) {
        Ok(opened) => match expect_mount() {
            Ok(()) => Ok((opened, provisional)),
            // The file system was unmounted meanwhile.
            Err(why) => {
                drop(provisional);
                drop(opened);
                Err(why.into())
            }
        },
        Err(error) => Err(Obstacle { why: error.to_string(), is_wrong_secret: error.is_wrong_secret() }),
    }
}

/// Returns the mount that a file is on, or would be; `None` if a component of the path of its directory is a
/// link, which can lead to the mount point of a file system that was unmounted.
fn direct_mount(path: &Path) -> Option<Mount> {
    let directory = path.parent()?;
    Mount::of(path).filter(|_| directory.canonicalize().is_ok_and(|real| real == directory))
}

/// Why a medium cannot be served yet.
struct Obstacle {
    /// A sentence.
    why: String,
    /// Whether only another secret or image can change that.
    is_wrong_secret: bool,
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Self { why, is_wrong_secret: false }
    }
}

impl LateMedia {
    /// Starts a thread for each medium that is absent.
    pub(super) fn open_absent(&self, state: &StateDir, events: &Sender<DaemonEvent>) {
        let mut absent: Vec<(u64, UnitId)> = {
            let list = self.list();
            let absent = list.units.iter().filter(|(_, late)| matches!(late.stage, Stage::Absent));
            // Drives come with their library.
            let alone = absent.filter(|(_, late)| !list.comes_with_library(&late.unit));
            alone.map(|(id, late)| (late.tried, *id)).collect()
        };
        // Media that do not answer do not take the places of the others again and again.
        absent.sort_unstable();
        let mut places = BTreeMap::<PathBuf, Vec<(Place, UnitId)>>::new();
        for (_, id) in absent {
            let place = self.place(id);
            places.entry(place.name().to_owned()).or_default().push((place, id));
        }
        for (name, media) in places {
            self.open_at(name, media, state, events);
        }
    }

    /// Starts a thread that opens the media of a place, unless one does. Media that links lead to are opened
    /// by the threads of their places.
    fn open_at(
        &self,
        name: PathBuf,
        media: Vec<(Place, UnitId)>,
        state: &StateDir,
        events: &Sender<DaemonEvent>,
    ) {
        if !self.take_place(&name) {
            return;
        }
        let (late, state, events, of) = (self.clone(), state.clone(), events.clone(), name.clone());
        let work = move || {
            let DividedWork { here, elsewhere } = answers::follow_links(media);
            for (name, media) in elsewhere {
                late.open_at(name, media, &state, &events);
            }
            for id in here {
                if let Some((number, unit)) = late.begin_attempt(id) {
                    late.attempt((id, number), unit, &state, &events);
                }
            }
            late.list().opening.remove(&of);
        };
        let spawned = std::thread::Builder::new().name("late-medium".to_owned()).spawn(work);
        if let Err(error) = spawned {
            self.list().opening.remove(&name);
            crate::warning!("cannot start a thread that opens late media: {}", os_error(&error));
        }
    }

    /// Returns what the media share that one thread opens, one after the other: they can only hang together.
    fn place(&self, id: UnitId) -> Place {
        let list = self.list();
        let unit = list.units.get(&id).map(|late| &late.unit);
        match unit.filter(|unit| server(unit).is_none()).and_then(|unit| unit.medium.path()) {
            Some(path) => Place::of(path),
            None => Place::named(&id.0.to_string()),
        }
    }

    /// Returns whether a thread may open the media of a place: no other one does, and not enough threads do.
    fn take_place(&self, place: &Path) -> bool {
        let mut list = self.list();
        let opening = &mut list.opening;
        let is_fresh = |since: &&Instant| since.elapsed() < ANSWER_MAX;
        let is_free = !opening.contains_key(place)
            && opening.len() < THREADS_MAX
            && opening.values().filter(is_fresh).count() < OPENINGS_MAX;
        if is_free {
            opening.insert(place.to_owned(), Instant::now());
        }
        is_free
    }

    /// Returns the number of an attempt and its unit, unless enough attempts have begun.
    fn begin_attempt(&self, id: UnitId) -> Option<(u64, Unit)> {
        let mut list = self.list();
        let number = list.begun + 1;
        let wanted = list.units.get(&id).filter(|late| matches!(late.stage, Stage::Absent))?;
        let is_alike = |other: &Unit| server(other).is_some() && server(other) == server(&wanted.unit);
        let opening = list.units.values().filter(|late| matches!(late.stage, Stage::Opening(_)));
        if opening.filter(|late| is_alike(&late.unit)).count() >= OPENINGS_MAX_ALIKE {
            return None;
        }
        let late = list.units.get_mut(&id)?;
        (late.stage, late.tried) = (Stage::Opening(number), number);
        let unit = late.unit.clone();
        list.begun = number;
        Some((number, unit))
    }

    /// Opens a medium, and passes it to the main thread.
    fn attempt(
        &self,
        (id, number): (UnitId, u64),
        unit: Unit,
        state: &StateDir,
        events: &Sender<DaemonEvent>,
    ) {
        let found = KeyEvidence::of(&unit);
        if found.is_some() && found == self.list().units.get(&id).and_then(|late| late.unfit) {
            return self.end_attempt((id, number), None);
        }
        let creatable_on = self.creatable_on(id, &unit);
        let opened = match self.check_quiet(id, &unit) {
            Ok(()) => open(&unit, state, creatable_on.as_ref()),
            Err(why) => Err(why.into()),
        };
        match opened {
            Ok(opened) => self.deliver((id, number), unit, opened, (state, events)),
            Err(Obstacle { why, is_wrong_secret }) => {
                if let Some(late) = self.list().units.get_mut(&id) {
                    late.unfit = found.filter(|_| is_wrong_secret);
                }
                self.end_attempt((id, number), Some(&why));
            }
        }
    }

    /// Returns the mount on which the file of a unit may be created. If its directory is not there, none is:
    /// it can become the mount point of another file system.
    fn creatable_on(&self, id: UnitId, unit: &Unit) -> Option<Mount> {
        // This asks the file system, which can hang.
        let is_lost = unit.medium.path().and_then(|path| path.parent()).is_some_and(is_missing);
        let mut list = self.list();
        let late = list.units.get_mut(&id)?;
        if is_lost {
            late.creatable_on = None;
        }
        late.creatable_on.clone()
    }

    /// Passes a medium that an attempt has opened to the main thread, if it is still wanted. Otherwise the
    /// changes of the file system are undone, before the medium is closed and its lock ends.
    pub(in crate::serve) fn deliver(
        &self,
        (id, number): (UnitId, u64),
        unit: Unit,
        (medium, provisional): (OpenMedium, FileRollback),
        (state, events): (&StateDir, &Sender<DaemonEvent>),
    ) {
        let is_mine = |stage: &Stage| matches!(stage, Stage::Opening(now) if *now == number);
        if medium.unread().is_some() {
            let unread = Box::new(UnreadMedium { medium, provisional });
            if !self.advances(id, &unit, is_mine, move || Stage::Unread(unread)) {
                self.end_attempt((id, number), None);
            }
            return;
        }
        let drives = match self.open_drives(&unit, &medium, state) {
            Ok(drives) => drives,
            Err(why) => {
                drop(provisional);
                drop(medium);
                return self.end_attempt((id, number), Some(&why));
            }
        };
        if !self.advances(id, &unit, is_mine, || Stage::Arriving) {
            // Another configuration came meanwhile.
            drop(provisional);
            drop(medium);
            return self.end_attempt((id, number), None);
        }
        // The changer moves no cartridge before its drives are served.
        let drives = drives.into_iter().filter(|drive| {
            self.advances(drive.id, &drive.unit, |stage| matches!(stage, Stage::Absent), || Stage::Arriving)
        });
        for arrived in drives.chain([ArrivedMedium { id, unit, medium, provisional }]) {
            // If the main thread has ended, nothing is served any more.
            let _ = events.send(DaemonEvent::MediumArrived(Box::new(arrived)));
        }
    }

    /// Opens the late drives of a library, which is open and therefore locked: nobody moves a cartridge
    /// meanwhile.
    ///
    /// # Errors
    /// A sentence, also if it is another library than the one that was served: hosts know the drives by their
    /// serial numbers, and would take the elements of this library for those of the former one.
    fn open_drives(
        &self,
        changer: &Unit,
        medium: &OpenMedium,
        state: &StateDir,
    ) -> Result<Vec<ArrivedMedium>, String> {
        let (Medium::Changer { path }, Some(has)) = (&changer.medium, medium.drive_serials()) else {
            return Ok(Vec::new());
        };
        // Some are not late any more if the others or the changer were refused.
        let (drives, known) = {
            let list = self.list();
            (list.late_drives(path), list.libraries.get(path).cloned().unwrap_or_default())
        };
        let (label, name) = (&changer.label, path.display());
        if has.len() != known.len() {
            let (has, known) = (has.len(), known.len());
            return Err(format!(
                "{label}: {name} has {has} drives, and {known} were served before; reload the configuration to serve it"
            ));
        }
        if let Some((now, before)) = has.iter().zip(&known).find(|(now, before)| now != before) {
            let now = now.escape_debug();
            return Err(format!(
                "{label}: {name} is another library than the one that was served: a drive has the serial number \
                 {now}, and had {before}; reload the configuration to serve it"
            ));
        }
        let open = |(id, unit): (UnitId, Unit)| {
            let (medium, provisional) = open(&unit, state, None).map_err(|obstacle| obstacle.why)?;
            Ok(ArrivedMedium { id, unit, medium, provisional })
        };
        drives.into_iter().map(open).collect()
    }

    /// Ends an attempt to open a medium, which is tried again.
    pub(in crate::serve) fn end_attempt(&self, (id, number): (UnitId, u64), why: Option<&str>) {
        let mut list = self.list();
        let Some(late) = list.units.get_mut(&id) else { return };
        if matches!(late.stage, Stage::Opening(now) if now == number) {
            late.stage = Stage::Absent;
            why.into_iter().for_each(|why| why.clone_into(&mut late.why));
        }
    }

    /// Checks that the file, folder or device of a unit has stayed as it is for a while, if it is not old.
    /// Loading a cartridge writes to it, so that a folder must be whole before.
    ///
    /// # Errors
    /// A sentence that says until when it is not served.
    fn check_quiet(&self, id: UnitId, unit: &Unit) -> Result<(), String> {
        let (path, trace) = match &unit.medium {
            Medium::File { path, .. } | Medium::Block { path, .. } => (path, WriteTrace::of(path)),
            Medium::Changer { path } | Medium::Tape { path } => (path, WriteTrace::of_folder(path)),
            _ => return Ok(()),
        };
        // Opening it says what is wrong with a medium that cannot be looked at.
        let Some(trace) = trace else { return Ok(()) };
        let (mut list, now) = (self.list(), Instant::now());
        let Some(late) = list.units.get_mut(&id) else { return Ok(()) };
        let since = match late.seen {
            Some((seen, since)) if seen == trace => since,
            _ => now,
        };
        late.seen = Some((trace, since));
        if now.duration_since(since) >= QUIET || trace.is_older_than(OLD, SystemTime::now()) {
            return Ok(());
        }
        let (label, name, seconds) = (&unit.label, path.display(), QUIET.as_secs());
        Err(format!("{label}: {name} is served when nobody has written to it for {seconds} seconds"))
    }
}

impl super::LateUnits {
    /// Returns whether a unit is a drive whose library is late too.
    pub(super) fn comes_with_library(&self, unit: &Unit) -> bool {
        let Medium::LibraryDrive { path, .. } = &unit.medium else { return false };
        let is_its = |medium: &Medium| matches!(medium, Medium::Changer { path: of } if of == path);
        self.units.values().any(|late| is_its(&late.unit.medium))
    }

    /// Returns the drives of a library that are late, in the order of their numbers.
    fn late_drives(&self, path: &Path) -> Vec<(UnitId, Unit)> {
        let late = self.units.iter().filter_map(|(id, late)| match &late.unit.medium {
            Medium::LibraryDrive { path: of, number } if of == path => {
                Some((*number, *id, late.unit.clone()))
            }
            _ => None,
        });
        let mut drives: Vec<_> = late.collect();
        drives.sort_unstable_by_key(|(number, ..)| *number);
        drives.into_iter().map(|(_, id, unit)| (id, unit)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Opens the absent media, and waits until each attempt has ended.
    pub(in super::super) fn look(late: &LateMedia, state: &StateDir, events: &Sender<DaemonEvent>) -> bool {
        late.look(state, events);
        while !late.list().opening.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        !late.list().units.is_empty()
    }

    /// Lets the time pass that a file must stay as it is.
    pub(in super::super) fn pass_quiet(late: &LateMedia) {
        for late in late.list().units.values_mut() {
            if let Some((_, since)) = &mut late.seen {
                *since -= QUIET;
            }
        }
    }
}
