//! Media that cannot be served yet. Their LUNs are not ready, everything else is served.
//!
//! Some were not there when the daemon started: a device that the system makes later, a file system that is
//! mounted later, with the medium or with its secret, a server that starts later. A thread for each tries to
//! open it, so that a server or a file system that does not answer delays no other medium. The main thread
//! serves what they find, after the checks of a start. A file is created here only on the file system that
//! was mounted at its path when it did not answer: a mount point can appear before its file system is
//! mounted. Nor is a file served while somebody still restores it.
//!
//! Others are open, and become LUKS2 images if they are blank. A thread for each reads it, which can take
//! hours. It keeps the lock of the medium, so that no other targe writes to it meanwhile.

mod opening;
mod preparation;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::nbd::uri::ServerAddress;
use backends::open::FileIdentity;
use target::units::UnitId;

use super::ServeError;
use super::daemon_event::DaemonEvent;
use super::media::{FileRollback, OpenMedium};
use super::mount::Mount;
use super::runtime_config::RuntimeConfig;
use super::served_size;
use super::state::StateDir;
use super::write_trace::WriteTrace;
use crate::answers::Place;
use crate::config::{Medium, Unit, secret, served_libraries};
use crate::luks;
use crate::mailbox::Sender;

/// How long the thread waits between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// How long a start waits for servers that do not answer, in all, before it connects to the rest of the
/// servers later. One attempt can take as long again.
const START_WAIT_MAX: Duration = Duration::from_secs(10);

/// The units whose media are late. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct LateMedia(Arc<Mutex<LateUnits>>);

#[derive(Debug, Default)]
struct LateUnits {
    units: BTreeMap<UnitId, LateUnit>,
    /// The serial numbers of the drives that each tape library of the configuration has, by its folder.
    libraries: BTreeMap<PathBuf, Vec<String>>,
    /// The paths of the media that threads read. A thread that is to stop is listed until it has closed its
    /// medium.
    reading: Vec<PathBuf>,
    /// How many attempts to open and preparations have begun. Their numbers tell whether they are still
    /// wanted.
    begun: u64,
    /// What the threads open that open media, and since when: the directory of a file, or a device.
    opening: BTreeMap<PathBuf, Instant>,
    /// The servers that did not answer at the start, and how long the start waited for them.
    unreachable: BTreeSet<String>,
    waited: Duration,
    /// What the thread needs that looks for media, after a start.
    context: Option<(StateDir, Sender<DaemonEvent>)>,
    /// Whether this thread runs.
    is_watched: bool,
}

#[derive(Debug)]
struct LateUnit {
    unit: Unit,
    /// Why its medium is not served yet.
    why: String,
    stage: Stage,
    /// The file or device when it was looked at last, and since when it has been like that.
    seen: Option<(WriteTrace, Instant)>,
    /// The number of the last attempt to open it; 0 if there was none.
    tried: u64,
    /// The mount on which its file may be created: a start or a change would have created the file there, if
    /// the file system had answered in time.
    creatable_on: Option<Mount>,
    /// The secret and the image that do not fit each other. Deriving a key again would cost seconds and
    /// memory, and find the same.
    unfit: Option<KeyEvidence>,
}

/// The file of a secret and the header of an image, as an attempt found them. The times of the image say
/// nothing: opening it changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyEvidence {
    secret: WriteTrace,
    header: u64,
}

impl KeyEvidence {
    fn of(unit: &Unit) -> Option<Self> {
        let secret = WriteTrace::of(unit.encrypt.as_ref()?)?;
        Some(Self { secret, header: luks::header_hash(unit.medium.path()?)? })
    }
}

impl LateUnit {
    const fn new(unit: Unit, why: String, stage: Stage) -> Self {
        Self { unit, why, stage, seen: None, tried: 0, creatable_on: None, unfit: None }
    }

    /// Lets the file of the unit be created on the present mount of its path.
    fn creatable(self) -> Self {
        Self { creatable_on: self.unit.medium.path().and_then(|path| Mount::of(path)), ..self }
    }

    /// Returns why its medium is late, without the name of its LUN.
    fn reason(&self) -> &str {
        let named = self.why.strip_prefix(&self.unit.label).and_then(|why| why.strip_prefix(": "));
        named.unwrap_or(&self.why)
    }
}

/// What becomes of a late medium next.
#[derive(Debug)]
enum Stage {
    /// It is opened again and again.
    Absent,
    /// The thread of this attempt opens it.
    Opening(u64),
    /// It is open. A thread is to read it.
    Unread(Box<UnreadMedium>),
    /// The thread of this preparation reads it.
    Preparing(u64),
    /// It is open, and on its way to the main thread.
    Arriving,
    /// It cannot be prepared, or a change has failed to open it. The next reload tries again.
    Refused,
}

impl Stage {
    const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent | Self::Opening(_))
    }
}

/// A medium that is open and must be read before it can be served.
#[derive(Debug)]
pub(super) struct UnreadMedium {
    /// Undoes what opening has changed, unless the medium is served. It is dropped before the lock.
    pub(super) provisional: FileRollback,
    pub(super) medium: OpenMedium,
}

/// Returns whether the medium of a unit that could not be opened is not there, so that it can still come. A
/// medium that is there and cannot be used is a mistake, or needs its operator. Nobody connects to a server:
/// what opening its medium says is enough.
pub(super) fn is_absent(unit: &Unit, why: &ServeError, state: &StateDir) -> bool {
    match &unit.medium {
        Medium::Nbd { .. } | Medium::VhostUserBlk { .. } | Medium::VhostUserScsi { .. } => {
            matches!(why, ServeError::Medium(why) if why.is_unreachable())
        }
        // A device whose driver has nothing to serve yet has no length.
        Medium::Block { path, .. } => {
            is_missing(path)
                || FileIdentity::of_path(path).is_ok_and(|(_, len)| len.is_none_or(|len| len == 0))
        }
        Medium::Changer { path } | Medium::LibraryDrive { path, .. } => is_missing(path),
        other => {
            other.path().is_some_and(|path| is_missing(path))
                || served_size::check_mounted(unit, state).is_err()
        }
    }
}

/// Returns that the secret of a unit is not there, so that its medium cannot be opened yet, if it is not
/// there.
pub(super) fn missing_secret(unit: &Unit) -> Option<String> {
    let path = unit.encrypt.as_ref().filter(|path| secret::is_missing(path))?;
    secret::key_file(path).err().map(|why| format!("{}: {why}", unit.label))
}

/// Returns the server that has the medium of a unit, if one has.
fn server(unit: &Unit) -> Option<String> {
    match &unit.medium {
        Medium::Nbd { uri, .. } => Some(match &uri.server {
            ServerAddress::Unix(path) => path.clone(),
            ServerAddress::Tcp(host, port) => format!("{host}:{port}"),
        }),
        Medium::VhostUserBlk { path, .. } | Medium::VhostUserScsi { path, .. } => {
            Some(path.display().to_string())
        }
        _ => None,
    }
}

/// Returns whether a server has the medium of a unit.
pub(super) fn is_of_server(unit: &Unit) -> bool {
    server(unit).is_some()
}

/// Returns what the medium of a unit shares with others that can only hang together, or wait for each other.
pub(super) fn opening_place(unit: &Unit) -> Place {
    match unit.medium.path() {
        Some(path) => Place::of(path),
        None if server(unit).is_some() => Place::named("servers"),
        None => Place::named("memory"),
    }
}

/// Returns that a medium, or something else that a unit needs, does not answer.
pub(super) fn does_not_answer(unit: &Unit, what: &dyn std::fmt::Display) -> String {
    format!("{}: {what} does not answer", unit.label)
}

fn is_missing(path: &Path) -> bool {
    path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

impl LateMedia {
    fn list(&self) -> MutexGuard<'_, LateUnits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a unit whose medium is not there, for this reason.
    pub(super) fn add(&self, id: UnitId, unit: &Unit, why: &str) {
        let (unit, why) = (unit.clone(), why.to_owned());
        self.list().units.insert(id, LateUnit::new(unit, why, Stage::Absent));
    }

    /// Adds a unit whose medium or secret does not answer, for this reason.
    pub(super) fn add_silent(&self, id: UnitId, unit: &Unit, why: &str) {
        let late = LateUnit::new(unit.clone(), why.to_owned(), Stage::Absent).creatable();
        self.list().units.insert(id, late);
    }

    /// Returns the number of an attempt to open a medium which begins now.
    pub(super) fn next_attempt(&self) -> u64 {
        let mut list = self.list();
        list.begun += 1;
        list.begun
    }

    /// Adds a unit whose medium the thread of this attempt opens: it is late from now on, for this reason,
    /// unless it is served.
    pub(super) fn add_opening(&self, (id, number): (UnitId, u64), unit: &Unit, why: String) {
        let late = LateUnit::new(unit.clone(), why, Stage::Opening(number)).creatable();
        self.list().units.insert(id, LateUnit { tried: number, ..late });
    }

    /// Records that an attempt has failed, and that only the next reload may try again.
    pub(super) fn refuse_attempt(&self, (id, number): (UnitId, u64), why: &str) {
        let mut list = self.list();
        let Some(late) = list.units.get_mut(&id) else { return };
        if matches!(late.stage, Stage::Opening(now) if now == number) {
            (late.why, late.stage) = (why.to_owned(), Stage::Refused);
        }
    }

    /// Returns why a start does not wait for the server of a unit, if it has found it out of reach, or has
    /// waited long enough for others.
    pub(super) fn put_off(&self, unit: &Unit) -> Option<String> {
        let server = server(unit)?;
        let list = self.list();
        let is_known = list.unreachable.contains(&server);
        if !is_known && list.waited < START_WAIT_MAX {
            return None;
        }
        let found = if is_known { "does not answer" } else { "is connected to after the start" };
        Some(format!("{}: {server} {found}", unit.label))
    }

    /// Records how long a start has waited for the medium of a unit that is late.
    pub(super) fn waited_for(&self, unit: &Unit, wait: Duration) {
        let mut list = self.list();
        list.unreachable.extend(server(unit));
        list.waited += wait;
    }

    /// Returns why each medium is late, without the names of their LUNs.
    pub(super) fn reasons(&self) -> BTreeMap<UnitId, String> {
        self.list().units.iter().map(|(id, late)| (*id, late.reason().to_owned())).collect()
    }

    /// Returns why another process cannot take over, if it cannot.
    pub(super) fn obstacle(&self) -> Option<String> {
        let list = self.list();
        let late = list.units.values().next()?;
        Some(format!("{}: {}", late.unit.label, late.reason()))
    }

    /// Returns whether the medium of a unit is late because it is not there.
    pub(super) fn waits_for(&self, unit: &Unit) -> bool {
        let is_it = |late: &LateUnit| late.stage.is_absent() && late.unit.key() == unit.key();
        self.list().units.values().any(is_it)
    }

    /// Returns whether a unit is a drive of a tape library that is late: it comes with its library.
    pub(super) fn awaits_library(&self, unit: &Unit) -> bool {
        self.list().comes_with_library(unit)
    }

    /// Returns whether the medium of a unit is late and this process does not have it open, so that another
    /// unit can have it.
    pub(super) fn is_closed(&self, unit: &Unit) -> bool {
        let is_open = |stage: &Stage| matches!(stage, Stage::Unread(_) | Stage::Preparing(_));
        self.list().units.values().any(|late| late.unit.key() == unit.key() && !is_open(&late.stage))
    }

    /// Returns whether the medium of a unit is late.
    pub(super) fn holds(&self, unit: &Unit) -> bool {
        self.list().units.values().any(|late| late.unit.key() == unit.key())
    }

    /// Takes over the units of a configuration, and forgets those that it does not have.
    pub(super) fn keep<'u>(&self, all: &[Unit], unit: impl Fn(UnitId) -> Option<&'u Unit>) {
        let mut list = self.list();
        let libraries = served_libraries(all).into_iter();
        list.libraries = libraries.map(|(path, library)| (path, library.drives)).collect();
        list.units.retain(|id, late| {
            let Some(unit) = unit(*id) else { return false };
            late.unit = unit.clone();
            true
        });
    }

    /// Forgets a unit whose medium is served.
    pub(super) fn served(&self, id: UnitId) {
        self.list().units.remove(&id);
    }

    /// Records that a medium which had come is not served.
    pub(super) fn refused(&self, id: UnitId, why: &str) {
        if let Some(late) = self.list().units.get_mut(&id) {
            (late.why, late.stage) = (why.to_owned(), Stage::Absent);
        }
    }

    /// Starts the thread that looks for the media, if any is late. It ends when none is, or when the main
    /// thread has ended.
    pub(super) fn start(
        &self,
        runtime: &RuntimeConfig,
        state: StateDir,
        events: Sender<DaemonEvent>,
    ) -> io::Result<()> {
        self.keep(&runtime.config.units, |id| runtime.unit(id));
        self.list().context = Some((state, events));
        self.watch()
    }

    /// Starts the thread again if media are late, and it has ended.
    pub(super) fn watch(&self) -> io::Result<()> {
        let mut list = self.list();
        let Some((state, events)) = list.context.clone() else { return Ok(()) };
        if list.units.is_empty() || list.is_watched {
            return Ok(());
        }
        let late = self.clone();
        let look = move || {
            while late.look(&state, &events) {
                std::thread::sleep(RETRY_DELAY);
            }
        };
        std::thread::Builder::new().name("late-media".to_owned()).spawn(look)?;
        list.is_watched = true;
        Ok(())
    }

    /// Starts threads that open media, and threads that read those which are open. Returns whether there is
    /// anything left to look for.
    fn look(&self, state: &StateDir, events: &Sender<DaemonEvent>) -> bool {
        self.open_absent(state, events);
        self.prepare_unread(events);
        let mut list = self.list();
        list.is_watched = !list.units.is_empty();
        list.is_watched
    }

    /// Sets the next stage of a unit. Returns `false` if its medium is not wanted any more: the configuration
    /// of the unit or its stage is another one.
    fn advances(
        &self,
        id: UnitId,
        unit: &Unit,
        is_expected: impl Fn(&Stage) -> bool,
        next: impl FnOnce() -> Stage,
    ) -> bool {
        match self.list().units.get_mut(&id) {
            Some(late) if late.unit == *unit && is_expected(&late.stage) => {
                late.stage = next();
                if matches!(late.stage, Stage::Unread(_)) {
                    late.why = preparation::waiting(&late.unit.medium);
                }
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
