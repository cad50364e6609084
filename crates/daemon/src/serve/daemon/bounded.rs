//! Opens and enlarges media for a configuration that is being prepared, for a limited time. A thread that a
//! file system keeps longer than that is abandoned: the change is refused, and the thread undoes what it has
//! done. Until then nobody opens, enlarges or measures that medium.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backends::open::FileIdentity;
use target::units::UnitId;

use super::Daemon;
use super::units::{NumberedUnit, UnreadMedia, apart, load_units, open_media};
use crate::answers::{self, Wait};
use crate::config::Unit;
use crate::serve::ServeError;
use crate::serve::late_media::{does_not_answer, opening_place};
use crate::serve::media::growth;
use crate::serve::media::{FileRollback, OpenMedium};
use crate::serve::reactor_shard::NewUnit;
use crate::serve::state::StateDir;

/// How long a change waits for the next medium to be opened or enlarged.
const WORK_MAX: Duration = Duration::from_secs(30);

/// How many threads work on each medium. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkedOn(Arc<Mutex<BTreeMap<PathBuf, u32>>>);

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

    /// Opens the media of units.
    ///
    /// # Errors
    /// Why one cannot be opened.
    pub(super) fn open(
        &self,
        units: &[NumberedUnit],
        state: &StateDir,
        all: &mut FileRollback,
    ) -> Result<Vec<OpenMedium>, ServeError> {
        units.iter().try_for_each(|(_, _, unit)| self.expect_free(unit)).map_err(ServeError::Failed)?;
        let mut work = Vec::new();
        for (id, index, unit) in units {
            let right = self.begin(unit);
            let (id, index, unit, state) = (*id, *index, (*unit).clone(), state.clone());
            work.push((opening_place(&unit), move || {
                let (one, mut provisional) = (std::iter::once((id, index, &unit)), FileRollback::default());
                let opened = open_media(one, &state, &mut provisional, None);
                // In this order they are dropped: what was changed is undone before the lock ends.
                (provisional, opened, right)
            }));
        }
        let opened = answers::of_or_late(work, Wait::Each(WORK_MAX), |_, late| drop(late));
        let mut media = Vec::new();
        for ((_, _, unit), opened) in units.iter().zip(opened) {
            let silent = || ServeError::Failed(does_not_answer(unit, &unit.medium));
            let (provisional, opened, _) = opened.ok_or_else(silent)?;
            all.extend(provisional);
            media.extend(opened?);
        }
        Ok(media)
    }

    /// Enlarges the files of units that are served, and have these identities. Returns those which were
    /// shorter.
    ///
    /// # Errors
    /// Why one cannot be enlarged.
    pub(super) fn grow(
        &self,
        units: &[(UnitId, &Unit, FileIdentity)],
        state: &StateDir,
        all: &mut FileRollback,
    ) -> Result<Vec<UnitId>, String> {
        units.iter().try_for_each(|(_, unit, _)| self.expect_free(unit))?;
        let mut work = Vec::new();
        for (_, unit, served) in units {
            let right = self.begin(unit);
            let (unit, served, state) = ((*unit).clone(), *served, state.clone());
            work.push((opening_place(&unit), move || {
                let mut provisional = FileRollback::default();
                let is_grown = growth::grow(&unit, served, &state, &mut provisional);
                (provisional, is_grown, right)
            }));
        }
        let mut grown = Vec::new();
        let found = answers::of_or_late(work, Wait::Each(WORK_MAX), |_, late| drop(late));
        for ((id, unit, _), found) in units.iter().zip(found) {
            let (provisional, is_grown, _) = found.ok_or_else(|| does_not_answer(unit, &unit.medium))?;
            all.extend(provisional);
            grown.extend(is_grown.map_err(|error| error.to_string())?.then_some(*id));
        }
        Ok(grown)
    }
}

impl Daemon {
    /// Opens the media of new units, and loads the persistent state of the units. Media that must be read
    /// before they can be served are returned apart.
    pub(super) fn open_units(
        &mut self,
        units: &[NumberedUnit],
        provisional: &mut FileRollback,
    ) -> Result<(Vec<NewUnit>, UnreadMedia), ServeError> {
        let media = self.worked_on.open(units, &self.state, provisional)?;
        let (mut ready, mut all_unread) = (Vec::new(), Vec::new());
        for (unit, medium) in units.iter().copied().zip(media) {
            let (medium, unread) = apart(medium);
            ready.extend(medium.map(|medium| (unit, medium)));
            all_unread.extend(unread.map(|unread| (unit.0, unread)));
        }
        Ok((load_units(ready.into_iter(), &self.state, &mut self.disks, false)?, all_unread))
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
