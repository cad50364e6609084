//! Opens the media of a daemon that starts.
//!
//! A file system can hang, so each directory has a thread of its own, and the start goes on without the media
//! that do not answer: they are late. The thread that waits for such a medium stays with it, and nobody else
//! opens it meanwhile. When it answers, the thread passes it to the main thread, which serves it if its unit
//! is still configured as it was; otherwise the thread undoes what it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use target::units::UnitId;

use super::units::{NumberedUnit, apart, open_media};
use crate::answers::{self, Wait};
use crate::config::Unit;
use crate::mailbox::{Sender, channel};
use crate::serve::ServeError;
use crate::serve::daemon_event::DaemonEvent;
use crate::serve::late_media::{self, LateMedia, does_not_answer};
use crate::serve::media::handed_over::HandedOverMedia;
use crate::serve::media::{FileRollback, OpenMedium};
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::served_size;
use crate::serve::state::StateDir;

/// How long a start waits for the next medium to be opened before it goes on without the rest. An attempt to
/// connect to a server ends before.
const OPEN_PATIENCE: Duration = Duration::from_secs(12);

/// The same, for a start that must have all media.
const STRICT_OPEN_PATIENCE: Duration = Duration::from_secs(120);

/// How long a process that takes over waits for the next medium. The one that serves waits meanwhile.
const TAKE_PATIENCE: Duration = Duration::from_secs(20);

/// How a daemon starts.
pub(super) struct FirstOpening<'s> {
    pub(super) state: &'s StateDir,
    pub(super) late: &'s LateMedia,
    /// Whether the daemon may wait for media.
    pub(super) may_wait: bool,
    /// The paths of media and secrets that do not answer.
    pub(super) silent: &'s BTreeSet<PathBuf>,
    pub(super) events: &'s Sender<DaemonEvent>,
}

/// What opening a medium has led to.
enum Outcome {
    /// It is open. The directory was looked at before.
    Open { provisional: FileRollback, medium: Box<OpenMedium>, directory: Option<DirectoryId> },
    /// It cannot be served yet: why, and until when.
    Late(String, &'static str),
    /// The daemon does not start.
    Failed(ServeError),
}

impl FirstOpening<'_> {
    /// Opens the media of the units of each reactor. What another process gives to this one is taken from
    /// `handed_over`. A medium that cannot be served yet is `None`, and the list of late media has it: one
    /// that must be read first, and, if the daemon may wait for media, one that is not there, that fails,
    /// that is not the one which was served before, or that does not answer.
    pub(super) fn open(
        &self,
        (runtime, count): (&RuntimeConfig, usize),
        provisional: &mut FileRollback,
        handed_over: Option<&mut HandedOverMedia>,
    ) -> Result<Vec<Vec<Option<OpenMedium>>>, ServeError> {
        self.late.keep(&runtime.config.units, |id| runtime.unit(id));
        let units: Vec<Vec<_>> = (0..count).map(|index| runtime.units(index).collect()).collect();
        if let Some(handed_over) = handed_over {
            let opened = self.take(units.concat(), provisional, handed_over, TAKE_PATIENCE)?.into_iter();
            let mut opened = units.concat().into_iter().zip(opened);
            let mut ready = |count: usize| {
                opened
                    .by_ref()
                    .take(count)
                    .map(|((id, _, unit), medium)| self.ready(id, unit, medium))
                    .collect::<Vec<_>>()
            };
            return Ok(units.iter().map(|units| ready(units.len())).collect());
        }
        let mut opened = self.open_units(units.concat(), provisional)?.into_iter();
        Ok(units.iter().map(|units| opened.by_ref().take(units.len()).collect()).collect())
    }

    /// Takes the media of units from the process that serves, which waits: for a limited time for the next
    /// one.
    fn take(
        &self,
        units: Vec<NumberedUnit>,
        provisional: &mut FileRollback,
        handed_over: &mut HandedOverMedia,
        patience: Duration,
    ) -> Result<Vec<OpenMedium>, ServeError> {
        let owned: Vec<_> = units.iter().map(|(id, index, unit)| (*id, *index, (*unit).clone())).collect();
        let (state, mut media) = (self.state.clone(), std::mem::take(handed_over));
        let (taken, each) = channel();
        let work = move || {
            for (id, index, unit) in owned {
                let (one, mut provisional) = (std::iter::once((id, index, &unit)), FileRollback::default());
                let opened = open_media(one, &state, &mut provisional, Some(&mut media));
                let is_last = opened.is_err();
                if taken.send((opened, provisional)).is_err() || is_last {
                    return None;
                }
            }
            Some(media)
        };
        let thread = std::thread::Builder::new().name("media".to_owned()).spawn(work);
        let thread = thread.map_err(ServeError::Thread)?;
        let mut media = Vec::new();
        for (_, _, unit) in units {
            let silent = |_| ServeError::Failed(does_not_answer(unit, &unit.medium));
            let (opened, one) = each.recv_timeout(patience).map_err(silent)?;
            provisional.extend(one);
            media.extend(opened?);
        }
        // What nobody has taken shows that a path leads to another medium.
        *handed_over = thread.join().ok().flatten().unwrap_or_default();
        Ok(media)
    }

    /// Opens the media of units.
    fn open_units(
        &self,
        units: Vec<NumberedUnit>,
        provisional: &mut FileRollback,
    ) -> Result<Vec<Option<OpenMedium>>, ServeError> {
        let (mut asked, mut work) = (Vec::new(), Vec::new());
        let goes_on = Arc::new(AtomicBool::new(false));
        for (id, index, unit) in &units {
            if let Some(path) = silent_path(unit, self.silent).filter(|_| self.may_wait) {
                let why = does_not_answer(unit, &path.display());
                crate::error!("{why}; its LUN is not ready until it does");
                self.late.add_silent(*id, unit, &why);
                continue;
            }
            let number = self.late.next_attempt();
            self.late.add_opening((*id, number), unit, does_not_answer(unit, &unit.medium));
            asked.push((*id, number, (*unit).clone()));
            let (late, state, may_wait) = (self.late.clone(), self.state.clone(), self.may_wait);
            let (unit, index) = ((*unit).clone(), *index);
            let went_on = Arc::clone(&goes_on);
            let (place, id) = (late_media::opening_place(&unit), *id);
            let open = move || open_first((id, index, &unit), (&state, &late), (may_wait, &went_on));
            work.push((place, open));
        }
        let asked = Arc::new(asked);
        let patience = if self.may_wait { OPEN_PATIENCE } else { STRICT_OPEN_PATIENCE };
        let found = answers::of_or_late(work, Wait::Each(patience), self.taker(&asked));
        goes_on.store(true, Ordering::Release);
        let mut found: BTreeMap<_, _> =
            asked.iter().zip(found).map(|((id, ..), found)| (*id, found)).collect();
        let settle = |(id, _, unit)| match found.remove(&id) {
            Some(outcome) => self.settle((id, unit), outcome, provisional),
            None => Ok(None),
        };
        units.into_iter().map(settle).collect()
    }

    /// Takes what was found of a medium before the start went on.
    fn settle(
        &self,
        (id, unit): (UnitId, &Unit),
        outcome: Option<Outcome>,
        all: &mut FileRollback,
    ) -> Result<Option<OpenMedium>, ServeError> {
        match outcome {
            Some(Outcome::Open { medium, provisional, .. }) => {
                self.late.served(id);
                all.extend(provisional);
                Ok(self.ready(id, unit, *medium))
            }
            Some(Outcome::Late(why, until)) => {
                crate::error!("{why}; {until}");
                self.late.add(id, unit, &why);
                Ok(None)
            }
            Some(Outcome::Failed(why)) => Err(why),
            None if self.may_wait => {
                let why = does_not_answer(unit, &unit.medium);
                crate::error!("{why}; its LUN is not ready until it does");
                Ok(None)
            }
            None => Err(ServeError::Failed(does_not_answer(unit, &unit.medium))),
        }
    }

    /// Returns a medium that can be served. One that must be read first is late.
    fn ready(&self, id: UnitId, unit: &Unit, medium: OpenMedium) -> Option<OpenMedium> {
        let (ready, unread) = apart(medium);
        unread.into_iter().for_each(|unread| self.late.add_unread(id, unit, unread));
        ready
    }

    /// Returns what the thread of a medium does which answers when the start has gone on.
    fn taker(
        &self,
        asked: &Arc<Vec<(UnitId, u64, Unit)>>,
    ) -> impl Fn(usize, Option<Outcome>) + Clone + Send + Sync + 'static {
        let (asked, late, may_wait) = (Arc::clone(asked), self.late.clone(), self.may_wait);
        let (state, events) = (self.state.clone(), self.events.clone());
        move |at, outcome| {
            let Some((id, number, unit)) = asked.get(at) else { return };
            let attempt = (*id, *number);
            match outcome {
                Some(Outcome::Open { medium, provisional, directory }) if may_wait => {
                    match expect_same_place(unit, directory, &state) {
                        Ok(()) => {
                            late.deliver(attempt, unit.clone(), (*medium, provisional), (&state, &events));
                        }
                        Err(why) => {
                            drop(provisional);
                            drop(medium);
                            late.end_attempt(attempt, why.as_deref());
                        }
                    }
                }
                Some(Outcome::Open { medium, provisional, .. }) => {
                    drop(provisional);
                    drop(medium);
                }
                Some(Outcome::Late(why, _)) => late.end_attempt(attempt, Some(&why)),
                Some(Outcome::Failed(why)) => {
                    crate::error!("{why}; its LUN is not ready, and is tried again");
                    late.end_attempt(attempt, Some(&why.to_string()));
                }
                None => late.end_attempt(attempt, None),
            }
        }
    }
}

/// Records the lengths of the files that are served, see [`served_size`].
pub(super) fn record_lengths(runtime: &RuntimeConfig, late: &LateMedia, state: &StateDir) {
    let opened = runtime.config.units.iter().filter(|unit| !late.holds(unit));
    let saved = served_size::save(&runtime.config, |unit| !late.holds(unit), state);
    if let Err(error) = saved.and_then(|()| served_size::save_opened(opened, state)) {
        crate::warning!("{error}");
    }
}

/// Opens the medium of a unit, on a thread that may be abandoned.
fn open_first(
    (id, index, unit): NumberedUnit,
    (state, late): (&StateDir, &LateMedia),
    (may_wait, goes_on): (bool, &AtomicBool),
) -> Outcome {
    if may_wait && let Some(why) = late_media::missing_secret(unit) {
        // The medium is not opened: without its key a file would only be created.
        return Outcome::Late(why, "its LUN is not ready until the secret is there");
    }
    let absent = "its LUN is not ready until the medium is there";
    if may_wait && let Some(why) = late.put_off(unit) {
        return Outcome::Late(why, absent);
    }
    let (directory, begun) = (directory(unit), Instant::now());
    if goes_on.load(Ordering::Acquire) {
        // The directory can be another one than the start wanted.
        return Outcome::Late(does_not_answer(unit, &unit.medium), absent);
    }
    let (one, mut provisional) = (std::iter::once((id, index, unit)), FileRollback::default());
    match open_media(one, state, &mut provisional, None) {
        Ok(mut media) => match media.pop() {
            Some(medium) => Outcome::Open { medium: Box::new(medium), provisional, directory },
            None => Outcome::Failed(ServeError::Failed(format!("{}: nothing was opened", unit.label))),
        },
        Err(why) if may_wait && late_media::is_absent(unit, &why, state) => {
            late.waited_for(unit, begun.elapsed());
            Outcome::Late(why.to_string(), absent)
        }
        Err(why) if may_wait && why.is_of_medium() => {
            Outcome::Late(why.to_string(), "its LUN is not ready, and is tried again")
        }
        Err(why) => Outcome::Failed(why),
    }
}

/// The file system and the inode of a directory.
pub(super) type DirectoryId = (u64, u64);

/// Returns the directory that the medium of a unit is in.
pub(super) fn directory(unit: &Unit) -> Option<DirectoryId> {
    let directory = unit.medium.path()?.parent()?.metadata().ok()?;
    Some((directory.dev(), directory.ino()))
}

/// Checks that a medium which was opened late is the one that was wanted. The file system that hung can
/// have been unmounted, so that the path leads to another one: nothing may be created or served there.
///
/// # Errors
/// Why it is not served, unless the next attempt says so.
pub(super) fn expect_same_place(
    unit: &Unit,
    before: Option<DirectoryId>,
    state: &StateDir,
) -> Result<(), Option<String>> {
    if directory(unit) != before {
        return Err(None);
    }
    served_size::check_mounted(unit, state).map_err(Some)
}

/// Returns the path of the medium or the secret of a unit that does not answer.
fn silent_path<'u>(unit: &'u Unit, silent: &BTreeSet<PathBuf>) -> Option<&'u Path> {
    let mut paths = unit.medium.path().into_iter().chain(&unit.encrypt);
    paths.find(|path| silent.contains(*path)).map(PathBuf::as_path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UnitIndex;
    use crate::scratch::Scratch;
    use crate::serve::media::tests::unit;

    /// Returns which media a start opens, and why the others are late.
    fn opened(
        units: &[Unit],
        state: &StateDir,
        may_wait: bool,
    ) -> (Result<Vec<bool>, ServeError>, BTreeMap<UnitId, String>) {
        let (late, events) = (LateMedia::default(), channel().0);
        let numbered = (0..).zip(units).map(|(id, unit)| (UnitId(id), UnitIndex(0), unit)).collect();
        let first = FirstOpening { state, late: &late, may_wait, silent: &BTreeSet::new(), events: &events };
        let opened = first.open_units(numbered, &mut FileRollback::default());
        (opened.map(|media| media.iter().map(Option::is_some).collect()), late.reasons())
    }

    #[test]
    fn a_start_does_not_touch_a_medium_whose_secret_is_missing_and_opens_the_others() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let secret = "type = \"file\", path = \"disk.img\", size = \"1M\", encrypt = \"mnt/secret\"";
        let units = [secret, "type = \"ram\", size = \"1M\""].map(|keys| unit(scratch.path(), keys));
        let open = |may_wait| opened(&units, &state, may_wait);
        let (opened, late) = open(true);
        assert_eq!(opened.unwrap(), [false, true]);
        let why = late_media::missing_secret(&units[0]).unwrap();
        assert!(why.contains("cannot read secret file ") && why.contains("mnt/secret"), "{why}");
        assert!(late.len() == 1 && why.ends_with(&format!(": {}", late[&UnitId(0)])), "{late:?}");
        assert!(!scratch.path().join("disk.img").exists(), "it is not created without its key");
        assert!(open(false).0.is_err());
    }

    #[test]
    fn a_start_serves_the_others_if_a_medium_does_not_hold_what_it_should() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let secret = scratch.path().join("secret");
        std::fs::write(&secret, "a secret of more than thirty-two bytes").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(scratch.path().join("damaged.img"), vec![7; 17 << 20]).unwrap();
        let damaged = "type = \"file\", path = \"damaged.img\", encrypt = \"secret\"";
        let short = "type = \"file\", path = \"short.img\", size = \"1M\"";
        let units = [damaged, short, "type = \"ram\", size = \"1M\""].map(|keys| unit(scratch.path(), keys));
        let path = scratch.path().join("short.img");
        std::fs::write(&path, [7; 4096]).unwrap();
        let directory = scratch.path().metadata().unwrap().ino();
        let record = format!("2 {} {} {directory} {path:?}\n", 1 << 20, 1 << 20);
        std::fs::write(state.size_file(units[1].identity.naa), record).unwrap();
        let open = |units: &[Unit], may_wait| opened(units, &state, may_wait);
        let (opened, late) = open(&units, true);
        assert_eq!(opened.unwrap(), [false, false, true]);
        assert!(late[&UnitId(0)].contains("damaged.img holds data, but no LUKS2 header"), "{late:?}");
        assert!(late[&UnitId(1)].contains("has 4096 bytes, and 1048576 were served"), "{late:?}");
        for unit in &units[..2] {
            assert!(open(std::slice::from_ref(unit), false).0.is_err(), "{}", unit.label);
        }
        // A mistake of the configuration ends the start.
        std::fs::create_dir(scratch.path().join("folder")).unwrap();
        let mistake = [unit(scratch.path(), "type = \"file\", path = \"folder\"")];
        assert!(open(&mistake, true).0.is_err());
    }

    #[test]
    fn a_process_that_takes_over_does_not_wait_for_a_medium_that_hangs() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let keys = "type = \"file\", path = \"disk\", size = \"1M\", encrypt = \"secret\"";
        let unit = unit(scratch.path(), keys);
        // Opening a pipe waits for its other end, as a file system waits for its server.
        let path = scratch.path().join("disk");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (late, events) = (LateMedia::default(), channel().0);
        let silent = BTreeSet::new();
        let first =
            FirstOpening { state: &state, late: &late, may_wait: false, silent: &silent, events: &events };
        let (mut provisional, mut media) = (FileRollback::default(), HandedOverMedia::default());
        let units = vec![(UnitId(7), UnitIndex(0), &unit)];
        let taken = first.take(units, &mut provisional, &mut media, Duration::from_millis(300));
        let why = taken.unwrap_err().to_string();
        assert!(why.ends_with("disk does not answer"), "{why}");
        // The thread ends.
        drop(std::fs::OpenOptions::new().write(true).open(&path).unwrap());
    }
}
