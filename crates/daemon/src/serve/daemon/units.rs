//! Opens the media of units, and loads their persistent state.

use std::sync::Arc;
use target::units::UnitId;

use crate::config::{Unit, UnitIndex};
use crate::serve::ServeError;
use crate::serve::disk_ids::DiskIds;
use crate::serve::handed_over::HandedOverMedia;
use crate::serve::media::{self, FileRollback, OpenMedium};
use crate::serve::reactor_shard::NewUnit;
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::sanitize_record::{self, SanitizeRecord};
use crate::serve::served_size;
use crate::serve::state::StateDir;
use crate::serve::upgrade::Succession;
use crate::serve::upgrade::successor::Sessions;

/// Opens the media of units. What another process gives to this one is taken from `handed_over`.
pub(super) fn open_media<'u>(
    units: impl Iterator<Item = (UnitId, UnitIndex, &'u Unit)>,
    state: &StateDir,
    provisional: &mut FileRollback,
    mut handed_over: Option<&mut HandedOverMedia>,
) -> Result<Vec<OpenMedium>, ServeError> {
    let mut open = |(_, _, unit): (UnitId, UnitIndex, &Unit)| {
        served_size::check(unit, state).map_err(ServeError::Failed)?;
        Ok(media::open(unit, state, provisional, handed_over.as_deref_mut())?)
    };
    units.map(&mut open).collect()
}

/// Takes the media that come with the sessions of another process, if there is one.
pub(super) fn receive_media(
    runtime: &RuntimeConfig,
    media: &mut [Vec<OpenMedium>],
    sessions: Option<&mut Sessions>,
) -> Result<(), ServeError> {
    let Some(sessions) = sessions else { return Ok(()) };
    let mut late = Succession::late_media(sessions)?;
    for (index, media) in media.iter_mut().enumerate() {
        for ((_, _, unit), medium) in runtime.units(index).zip(media) {
            medium.receive(unit, &mut late)?;
        }
    }
    if late.is_empty() {
        return Ok(());
    }
    let why =
        "a cartridge, a connection, a device or memory belongs to a LUN that is not in the configuration now";
    Err(ServeError::Failed(why.to_owned()))
}

/// Loads the persistent state of the units of all reactors.
pub(super) fn load_all_units(
    runtime: &RuntimeConfig,
    media: Vec<Vec<OpenMedium>>,
    (state, disks): (&StateDir, &mut DiskIds),
    is_handed_over: bool,
) -> Result<Vec<Vec<NewUnit>>, ServeError> {
    let load = |(index, media)| load_units(runtime.units(index).zip(media), state, disks, is_handed_over);
    media.into_iter().enumerate().map(load).collect()
}

/// Loads the persistent state of units whose media are open.
pub(super) fn load_units<'u>(
    units: impl Iterator<Item = ((UnitId, UnitIndex, &'u Unit), OpenMedium)>,
    state: &StateDir,
    disks: &mut DiskIds,
    is_handed_over: bool,
) -> Result<Vec<NewUnit>, ServeError> {
    let mut load = |((id, index, unit), medium): ((UnitId, UnitIndex, &Unit), OpenMedium)| {
        let naa = unit.identity.naa;
        let saved = state.load(naa)?.map(|bytes| (bytes, state.file(naa).display().to_string()));
        let record = SanitizeRecord::of(unit, medium.identity());
        if let Some((bytes, path)) = &saved {
            let checked = sanitize_record::check(unit, (bytes, path), &record, &state.sanitize_file(naa));
            checked.map_err(ServeError::Failed)?;
        }
        let disk = disks.name(unit, medium.identity());
        Ok(NewUnit { id, index, medium, disk, state: saved, record: Arc::new(record), is_handed_over })
    };
    units.map(&mut load).collect()
}

/// Opens the media of units, and loads the persistent state of the units.
pub(super) fn open_units<'u>(
    units: impl Iterator<Item = (UnitId, UnitIndex, &'u Unit)>,
    state: &StateDir,
    disks: &mut DiskIds,
    provisional: &mut FileRollback,
) -> Result<Vec<NewUnit>, ServeError> {
    let units: Vec<_> = units.collect();
    let media = open_media(units.iter().copied(), state, provisional, None)?;
    load_units(units.into_iter().zip(media), state, disks, false)
}
