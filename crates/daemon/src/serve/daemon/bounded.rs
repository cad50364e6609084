//! Opens and enlarges media for a configuration that is being prepared, for a limited time.
//!
//! A medium that takes longer to be opened (a file of many GB that is made durable or filled with zeros, a
//! file system that hangs) does not hold up the change: it is late, and its thread passes it to the main
//! thread when it is open. If the change is not applied, the thread undoes what it has done. A file that
//! takes longer to be enlarged is served: the change is refused, and the thread undoes its work. As long as a
//! thread works on a medium, nobody else opens, enlarges or measures it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backends::open::FileIdentity;
use target::units::UnitId;

use super::Daemon;
use super::first_media::{DirectoryId, directory, expect_same_place};
use super::late::{LIBRARY_IS_LATE, MUST_BE_READ};
use super::units::{NumberedUnit, UnreadMedia, apart, load_units, open_media};
use crate::answers::{self, ANSWER_MAX, Wait};
use crate::config::Unit;
use crate::mailbox::{Receiver, Sender, channel};
use crate::serve::ServeError;
use crate::serve::daemon_event::DaemonEvent;
use crate::serve::late_media::{LateMedia, does_not_answer, is_of_server, opening_place};
use crate::serve::media::growth;
use crate::serve::media::{FileRollback, OpenMedium};
use crate::serve::reactor_shard::NewUnit;
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::state::StateDir;

/// How long a change waits for the next medium to be opened before it is applied without it.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// The same, if servers have some of the media. An attempt to connect to a server ends before.
const SERVER_OPEN_MAX: Duration = Duration::from_secs(12);

/// How long a change waits for the next file to be enlarged, which takes no time on a file system that
/// answers, and for the storage of a file that is fully provisioned to be allocated. Signals and other
/// changes wait as long, and a program that wants to change the configuration file waits for 30 seconds in
/// all.
const GROW_MAX: Duration = Duration::from_secs(5);
const ALLOCATE_MAX: Duration = Duration::from_secs(20);

/// Why a LUN is not ready whose medium takes long to be opened.
pub(super) const STILL_OPENED: &str = "preparing: its medium is still being opened";

/// How many threads work on each medium. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkedOn(Arc<Mutex<BTreeMap<PathBuf, u32>>>);

/// The changes of the file system by a change that can still fail, and the rights to work on their media.
/// Dropping this undoes them on a thread that may be abandoned: nobody opens the media until it has ended.
#[derive(Default)]
pub(super) struct ProvisionalFiles {
    rollback: FileRollback,
    rights: Vec<Right>,
}

impl ProvisionalFiles {
    fn add(&mut self, rollback: FileRollback, right: Right) {
        if !rollback.is_empty() {
            self.rollback.extend(rollback);
            self.rights.push(right);
        }
    }

    /// Keeps the changes for good.
    pub(super) fn commit(mut self) {
        std::mem::take(&mut self.rollback).commit();
    }
}

impl Drop for ProvisionalFiles {
    fn drop(&mut self) {
        if self.rollback.is_empty() {
            return;
        }
        let (rollback, rights) = (std::mem::take(&mut self.rollback), std::mem::take(&mut self.rights));
        let undo = move || {
            drop(rollback);
            drop(rights);
        };
        if answers::of_one(undo, ANSWER_MAX).is_none() {
            crate::warning!("what a change that is not applied has done to files is undone when they answer");
        }
    }
}

/// What was opened of media, and which are still being opened.
pub(super) type OpenedUnits = (Vec<Option<OpenMedium>>, Vec<SlowOpening>);

/// The media of new units.
#[derive(Default)]
pub(super) struct NewMedia {
    /// What each reactor serves.
    pub(super) fresh: Vec<Vec<NewUnit>>,
    /// The media that must be read before they can be served.
    pub(super) unread: UnreadMedia,
    /// The media that are still being opened.
    pub(super) slow: Vec<SlowOpening>,
    /// The new drives of libraries that are late.
    pub(super) awaiting: Vec<UnitId>,
}

impl NewMedia {
    /// Returns the units that are not ready yet, and why.
    pub(super) fn not_ready(&self) -> impl Iterator<Item = (UnitId, &str)> {
        let unread = self.unread.iter().map(|(id, _)| (*id, MUST_BE_READ));
        let slow = self.slow.iter().map(|slow| (slow.unit(), STILL_OPENED));
        unread.chain(slow).chain(self.awaiting.iter().map(|id| (*id, LIBRARY_IS_LATE)))
    }
}

/// A medium that a thread still opens for a change. Dropping this abandons it.
#[derive(Debug)]
pub(super) struct SlowOpening {
    /// The unit, and the number of the attempt.
    attempt: (UnitId, u64),
    /// Reports that the change is applied.
    verdict: Sender<()>,
}

/// A medium that a thread opens for a change.
struct Asked {
    attempt: (UnitId, u64),
    unit: Unit,
    decided: Mutex<Receiver<()>>,
}

/// What a thread has opened. The fields are dropped in this order: what was changed is undone before the lock
/// ends.
struct Opening {
    provisional: FileRollback,
    opened: Result<Vec<OpenMedium>, ServeError>,
    /// The directory of the medium before it was opened.
    directory: Option<DirectoryId>,
    right: Right,
}

impl Asked {
    /// Waits until the change is applied, and passes the medium to the main thread. What was opened for a
    /// change that is not applied is undone. `None` stands for a medium whose opening has not begun.
    fn conclude(
        &self,
        opening: Option<Opening>,
        late: &LateMedia,
        (state, events): (&StateDir, &Sender<DaemonEvent>),
    ) {
        if self.decided.lock().unwrap_or_else(PoisonError::into_inner).recv().is_err() {
            return drop(opening);
        }
        let Some(Opening { provisional, opened, directory, right: _right }) = opening else {
            return late.end_attempt(self.attempt, None);
        };
        let medium = match opened.map(|mut media| media.pop()) {
            Ok(Some(medium)) => medium,
            Ok(None) => return late.end_attempt(self.attempt, None),
            Err(why) => {
                crate::error!("{why}; its LUN is not ready; reload the configuration to try again");
                drop(provisional);
                return late.refuse_attempt(self.attempt, &why.to_string());
            }
        };
        match expect_same_place(&self.unit, directory, state) {
            Ok(()) => late.deliver(self.attempt, self.unit.clone(), (medium, provisional), (state, events)),
            Err(why) => {
                drop(provisional);
                drop(medium);
                late.end_attempt(self.attempt, why.as_deref());
            }
        }
    }
}

impl SlowOpening {
    /// Returns the unit.
    pub(super) const fn unit(&self) -> UnitId {
        self.attempt.0
    }
}

/// The right to work on a medium until this is dropped. `None` stands for a medium without a path.
struct Right(WorkedOn, Option<PathBuf>);

impl WorkedOn {
    fn list(&self) -> MutexGuard<'_, BTreeMap<PathBuf, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the paths of the media that threads work on which were abandoned.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.list().keys().cloned().collect()
    }

    /// Checks that no thread which was abandoned works on the medium of a unit.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn expect_free(&self, unit: &Unit) -> Result<(), String> {
        match unit.medium.path() {
            Some(path) if self.list().contains_key(path) => {
                Err(format!("{}: {} still does not answer an earlier change", unit.label, unit.medium))
            }
            _ => Ok(()),
        }
    }

    fn begin(&self, unit: &Unit) -> Right {
        let path = unit.medium.path().cloned();
        if let Some(path) = path.clone() {
            *self.list().entry(path).or_default() += 1;
        }
        Right(self.clone(), path)
    }

    /// Opens the media of units. Those that take long are returned apart: their threads go on.
    ///
    /// # Errors
    /// Why one cannot be opened.
    pub(super) fn open(
        &self,
        units: &[NumberedUnit],
        around: (&StateDir, &LateMedia, &Sender<DaemonEvent>),
        all: &mut ProvisionalFiles,
    ) -> Result<OpenedUnits, ServeError> {
        units.iter().try_for_each(|(_, _, unit)| self.expect_free(unit)).map_err(ServeError::Failed)?;
        let (state, late, events) = around;
        let (mut asked, mut verdicts, mut work) = (Vec::new(), Vec::new(), Vec::new());
        for (id, index, unit) in units {
            let right = self.begin(unit);
            let (verdict, decided) = channel();
            let (id, index, unit, state) = (*id, *index, (*unit).clone(), state.clone());
            let attempt = (id, late.next_attempt());
            verdicts.push(SlowOpening { attempt, verdict });
            asked.push(Asked { attempt, unit: unit.clone(), decided: Mutex::new(decided) });
            work.push((opening_place(&unit), move || {
                let (one, mut provisional) = (std::iter::once((id, index, &unit)), FileRollback::default());
                let directory = directory(&unit);
                let opened = open_media(one, &state, &mut provisional, None);
                Opening { provisional, opened, directory, right }
            }));
        }
        let (asked, late, state, events) = (Arc::new(asked), late.clone(), state.clone(), events.clone());
        let conclude = move |at: usize, opening| {
            if let Some(asked) = asked.get(at) {
                asked.conclude(opening, &late, (&state, &events));
            }
        };
        let has_server = units.iter().any(|(_, _, unit)| is_of_server(unit));
        let patience = if has_server { SERVER_OPEN_MAX } else { OPEN_MAX };
        let opened = answers::of_or_late(work, Wait::Each(patience), conclude);
        let (mut media, mut slow, mut failed) = (Vec::new(), Vec::new(), None);
        for (opening, verdict) in opened.into_iter().zip(verdicts) {
            let Some(Opening { provisional, opened, right, .. }) = opening else {
                media.push(None);
                slow.push(verdict);
                continue;
            };
            all.add(provisional, right);
            match opened {
                Ok(mut opened) => media.push(opened.pop()),
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        failed.map_or(Ok((media, slow)), Err)
    }

    /// Enlarges the files of units that are served, and have these identities. Returns those which were
    /// shorter.
    ///
    /// # Errors
    /// Why one cannot be enlarged.
    pub(super) fn grow(
        &self,
        units: &[(UnitId, &Unit, FileIdentity)],
        all: &mut ProvisionalFiles,
    ) -> Result<Vec<UnitId>, String> {
        units.iter().try_for_each(|(_, unit, _)| self.expect_free(unit))?;
        let mut work = Vec::new();
        for (_, unit, served) in units {
            let right = self.begin(unit);
            let (unit, served) = ((*unit).clone(), *served);
            work.push((opening_place(&unit), move || {
                let mut provisional = FileRollback::default();
                let is_grown = growth::grow(&unit, served, &mut provisional);
                (provisional, is_grown, right)
            }));
        }
        let (mut grown, mut failed) = (Vec::new(), None);
        let allocates = units.iter().any(|(_, unit, _)| !unit.thin);
        let patience = if allocates { ALLOCATE_MAX } else { GROW_MAX };
        let found = answers::of_or_late(work, Wait::Each(patience), |_, late| drop(late));
        for ((id, unit, _), found) in units.iter().zip(found) {
            let is_grown = found.ok_or_else(|| does_not_answer(unit, &unit.medium));
            let is_grown = is_grown.and_then(|(provisional, is_grown, right)| {
                all.add(provisional, right);
                is_grown.map_err(|error| error.to_string())
            });
            match is_grown {
                Ok(is_grown) => grown.extend(is_grown.then_some(*id)),
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        failed.map_or(Ok(grown), Err)
    }
}

impl Daemon {
    /// Opens the media of the units that a configuration adds.
    pub(super) fn open_new_units(
        &mut self,
        runtime: &RuntimeConfig,
        provisional: &mut ProvisionalFiles,
    ) -> Result<NewMedia, String> {
        let mut media = NewMedia::default();
        for index in 0..self.reactors.len() {
            let known: BTreeSet<UnitId> = self.runtime.units(index).map(|(id, ..)| id).collect();
            let new = runtime.units(index).filter(|(id, ..)| !known.contains(id));
            let (late, new): (Vec<_>, Vec<_>) =
                new.partition(|(_, _, unit)| self.shared.late.awaits_library(unit));
            media.awaiting.extend(late.into_iter().map(|(id, ..)| id));
            let opened = self.open_units(&new, provisional);
            let (ready, unread, slow) = opened.map_err(|error| error.to_string())?;
            media.fresh.push(ready);
            media.unread.extend(unread);
            media.slow.extend(slow);
        }
        Ok(media)
    }

    /// Opens the media of new units, and loads the persistent state of the units. Media that must be read
    /// before they can be served, and media that take long to be opened, are returned apart.
    fn open_units(
        &mut self,
        units: &[NumberedUnit],
        provisional: &mut ProvisionalFiles,
    ) -> Result<(Vec<NewUnit>, UnreadMedia, Vec<SlowOpening>), ServeError> {
        let around = (&self.state, &self.shared.late, &self.shared.events);
        let (media, slow) = self.worked_on.open(units, around, provisional)?;
        let (mut ready, mut all_unread) = (Vec::new(), Vec::new());
        for (unit, medium) in units.iter().copied().zip(media) {
            let Some(medium) = medium else { continue };
            let (medium, unread) = apart(medium);
            ready.extend(medium.map(|medium| (unit, medium)));
            all_unread.extend(unread.map(|unread| (unit.0, unread)));
        }
        Ok((load_units(ready.into_iter(), &self.state, &mut self.disks, false)?, all_unread, slow))
    }

    /// Adds the media of a configuration that is applied which are still being opened.
    pub(super) fn add_slow(&self, runtime: &RuntimeConfig, slow: Vec<SlowOpening>) {
        for SlowOpening { attempt, verdict } in slow {
            if let Some(unit) = runtime.unit(attempt.0) {
                self.shared.late.add_opening(attempt, unit, format!("{}: {STILL_OPENED}", unit.label));
                let _ = verdict.send(());
            }
        }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        if let Some(path) = &self.1 {
            let mut list = self.0.list();
            if let Some(count) = list.get_mut(path) {
                *count -= 1;
                if *count == 0 {
                    list.remove(path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Instant;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::config::UnitIndex;
    use crate::scratch::Scratch;
    use crate::serve::media::tests::unit;

    const ID: UnitId = UnitId(7);

    /// Returns a unit whose opening waits for the other end of a pipe, as it waits for a file system.
    fn hanging_unit(directory: &Path) -> Unit {
        let secret = directory.join("secret");
        std::fs::write(&secret, "a secret of more than thirty-two bytes").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let unit = unit(directory, "type = \"file\", path = \"disk\", size = \"1M\", encrypt = \"secret\"");
        mknodat(CWD, directory.join("disk"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        unit
    }

    fn wait_until(is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_done() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_file_that_is_not_enlarged_delays_the_change_for_a_few_seconds() {
        let scratch = Scratch::new();
        let hanging = unit(scratch.path(), "type = \"file\", path = \"disk\", size = \"1M\"");
        mknodat(CWD, scratch.path().join("disk"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(hanging.thin);
        let (identity, _) = FileIdentity::of_path(&scratch.path().join("disk")).unwrap();
        let (worked_on, began) = (WorkedOn::default(), Instant::now());
        let grown = worked_on.grow(&[(ID, &hanging, identity)], &mut ProvisionalFiles::default());
        assert!(grown.unwrap_err().ends_with("does not answer"));
        assert!(began.elapsed() < ALLOCATE_MAX, "{:?}", began.elapsed());
        assert!(worked_on.expect_free(&hanging).is_err(), "a thread enlarges it");
        let pipe = std::fs::OpenOptions::new().read(true).open(scratch.path().join("disk")).unwrap();
        wait_until(|| worked_on.expect_free(&hanging).is_ok());
        drop(pipe);
    }

    #[test]
    fn a_medium_that_takes_long_is_late_if_the_change_is_applied_and_nothing_otherwise() {
        for is_applied in [true, false] {
            let scratch = Scratch::new();
            let state = StateDir::open(&scratch.path().join("state")).unwrap();
            let hanging = hanging_unit(scratch.path());
            let quick = unit(scratch.path(), "type = \"ram\", size = \"1M\"");
            let (worked_on, late, events) = (WorkedOn::default(), LateMedia::default(), channel().0);
            let units = [(UnitId(1), UnitIndex(0), &quick), (ID, UnitIndex(1), &hanging)];
            let mut provisional = ProvisionalFiles::default();
            let opened = worked_on.open(&units, (&state, &late, &events), &mut provisional).unwrap();
            let (media, mut slow) = opened;
            assert_eq!(media.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
            let SlowOpening { attempt, verdict } = slow.pop().unwrap();
            assert!(attempt.0 == ID && slow.is_empty());
            assert!(worked_on.expect_free(&hanging).is_err(), "a thread opens it");
            if is_applied {
                late.add_opening(attempt, &hanging, STILL_OPENED.to_owned());
                verdict.send(()).unwrap();
            }
            drop(verdict);
            // The pipe answers, and is no file that can be served.
            let pipe = std::fs::OpenOptions::new().write(true).open(scratch.path().join("disk")).unwrap();
            wait_until(|| worked_on.expect_free(&hanging).is_ok());
            drop(pipe);
            let reasons: Vec<String> = late.reasons().into_values().collect();
            assert_eq!(reasons.len(), usize::from(is_applied), "{reasons:?}");
            assert!(reasons.iter().all(|why| why.contains("regular file")), "{reasons:?}");
        }
    }
}
