//! Media that cannot be served yet: serving them when they can, and configurations that are applied while
//! they are late.

use target::units::UnitId;

use super::Daemon;
use super::silent::{SilentPaths, is_silent};
use super::units::load_units;
use crate::answers::{self, ANSWER_MAX};
use crate::config::{Environment, InvalidConfig, Loaded, Medium, Unit, served_libraries};
use crate::serve::daemon_event::ArrivedMedium;
use crate::serve::late_media::{LateMedia, UnreadMedium};
use crate::serve::media::{FileRollback, OpenMedium};
use crate::serve::reactor_shard::NewUnit;
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::served_size;

/// Why a disk is not ready that becomes a LUKS2 image if it is blank.
pub(super) const MUST_BE_READ: &str = "all of it is read first, to find out whether it is blank";

/// Why a new drive is not ready whose library is late.
pub(super) const LIBRARY_IS_LATE: &str = "it is served with its library, which is late";

impl Daemon {
    /// Adds the media of a new configuration that must be read before they can be served.
    pub(super) fn add_unread(&self, runtime: &RuntimeConfig, unread: Vec<(UnitId, UnreadMedium)>) {
        for (id, medium) in unread {
            if let Some(unit) = runtime.unit(id) {
                self.shared.late.add_unread(id, unit, medium);
            }
        }
    }

    /// Serves a medium that could not be served when its unit was added, unless another configuration came
    /// since it was opened.
    pub(super) fn serve_arrived(&mut self, arrived: ArrivedMedium) {
        let ArrivedMedium { id, unit, medium, provisional } = arrived;
        let late = self.shared.late.clone();
        let found = (0..self.reactors.len()).find_map(|reactor| {
            let mut units = self.runtime.units(reactor);
            units.find(|(known, _, _)| *known == id).map(|(_, index, now)| (reactor, index, *now == unit))
        });
        let Some((reactor, index, true)) = found else {
            let why = "its configuration has changed while it was opened".to_owned();
            return refuse(late, (id, why), (Some(medium), provisional));
        };
        let units = std::iter::once(((id, index, &unit), medium));
        let disks = self.disks.clone();
        let fresh = match load_units(units, &self.state, &mut self.disks, false) {
            Ok(fresh) => fresh,
            Err(why) => return refuse(late, (id, why.to_string()), (None, provisional)),
        };
        let mut all: Vec<Vec<NewUnit>> = self.reactors.iter().map(|_| Vec::new()).collect();
        let ports = self.reactors.iter().map(|_| Vec::new()).collect();
        if let Some(units) = all.get_mut(reactor) {
            units.extend(fresh);
        }
        // The reactors withhold it from initiators that have used another disk under its LUN.
        let failures = self.apply(self.runtime.clone(), (all, ports), Vec::new(), None);
        if let Some((_, why)) = failures.into_iter().next() {
            self.disks = disks;
            return refuse(late, (id, why), (None, provisional));
        }
        provisional.commit();
        late.served(id);
        let saved = served_size::save(&self.runtime.config, |served| *served == unit, &self.state);
        let opened = std::iter::once(&unit);
        if let Err(error) = saved.and_then(|()| served_size::save_opened(opened, &self.state)) {
            crate::warning!("{error}");
        }
        crate::info!("{}: its medium has come, and is served", unit.label);
    }

    /// Adds new drives of libraries that are late.
    pub(super) fn add_awaiting(&self, runtime: &RuntimeConfig, drives: Vec<UnitId>) {
        for id in drives {
            if let Some(unit) = runtime.unit(id) {
                self.shared.late.add(id, unit, LIBRARY_IS_LATE);
            }
        }
    }

    /// Looks for the late media of a configuration that was applied.
    pub(super) fn look_for_late(&self) {
        self.shared.late.retry_refused();
        if let Err(error) = self.shared.late.watch() {
            crate::error!("cannot start the thread that opens late media: {}", crate::os_error(&error));
        }
    }

    /// Returns a configuration with mistakes as one without, if each mistake is that a medium cannot be used
    /// which the configuration does not bring: that of a unit which is served exactly so, one that is served
    /// and does not answer, or one that is not there and that this daemon waits for. What is wrong with such
    /// a medium is no part of the change.
    pub(super) fn with_known_media(
        &self,
        unusable: Box<InvalidConfig>,
        silent: &SilentPaths,
    ) -> Result<Loaded, Box<InvalidConfig>> {
        let served = &self.runtime.config.units;
        let late = &self.shared.late;
        // Without its drives, a library that cannot be read is another one.
        let keeps = unusable.config.as_ref().is_some_and(|config| keeps_drives(served, &config.units));
        let is_served =
            |unit: &Unit| (keeps || !matches!(unit.medium, Medium::Changer { .. })) && served.contains(unit);
        let found = unusable.report.silent().clone();
        let does_not_answer = |unit: &Unit| {
            let is_silent = is_silent(unit, silent) || is_silent(unit, &found);
            is_silent && served.iter().any(|known| known.key() == unit.key())
        };
        unusable.accepting(|unit, is_absent| {
            is_served(unit) || is_absent && (late.waits_for(unit) || does_not_answer(unit))
        })
    }

    /// Returns the environment that a configuration is read in now: a library that is served has the drives
    /// with which it is served.
    pub(super) fn present_environment(&self) -> Environment {
        let served_libraries = served_libraries(&self.runtime.config.units);
        Environment { served_libraries, ..self.environment.clone() }
    }
}

/// Records that a medium which has come is not served, when what was done to its file is undone. That happens
/// on a thread that may be abandoned.
fn refuse(
    late: LateMedia,
    (id, why): (UnitId, String),
    (medium, provisional): (Option<OpenMedium>, FileRollback),
) {
    let undo = move || {
        drop(provisional);
        drop(medium);
        late.refused(id, &why);
    };
    if answers::of_one(undo, ANSWER_MAX).is_none() {
        crate::warning!("what was done to the file of a LUN that is not served is undone when it answers");
    }
}

/// Returns whether every served library that stays keeps its drives. A library that cannot be read and is not
/// served has none.
pub(super) fn keeps_drives(served: &[Unit], new: &[Unit]) -> bool {
    let mut libraries = new.iter().filter_map(|unit| match &unit.medium {
        Medium::Changer { path } => Some(path),
        _ => None,
    });
    libraries.all(|library| {
        let is_drive =
            |unit: &&Unit| matches!(&unit.medium, Medium::LibraryDrive { path, .. } if path == library);
        served.iter().filter(is_drive).all(|drive| new.contains(drive))
    })
}
