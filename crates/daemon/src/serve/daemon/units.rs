//! Opens the media of units, and loads their persistent state.

use target::units::UnitId;

use crate::config::{Config, Unit, UnitIndex};
use crate::serve::ServeError;
use crate::serve::disk_ids::DiskIds;
use crate::serve::late_media::UnreadMedium;
use crate::serve::media::handed_over::HandedOverMedia;
use crate::serve::media::{self, FileRollback, OpenMedium};
use crate::serve::placement::{self, Owners};
use crate::serve::reactor_shard::NewUnit;
use crate::serve::reactors;
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::sanitize_record;
use crate::serve::served_size;
use crate::serve::state::StateDir;
use crate::serve::upgrade::Succession;
use crate::serve::upgrade::successor::Sessions;

/// A unit with its numbers.
pub(super) type NumberedUnit<'u> = (UnitId, UnitIndex, &'u Unit);

/// Returns a medium as one that can be served, or as one that must be read first. The caller keeps what
/// undoes its opening.
pub(super) fn apart(medium: OpenMedium) -> (Option<OpenMedium>, Option<UnreadMedium>) {
    match medium.unread() {
        None => (Some(medium), None),
        Some(_) => (None, Some(UnreadMedium { medium, provisional: FileRollback::default() })),
    }
}

/// Opens the media of units. What another process gives to this one is taken from `handed_over`.
pub(super) fn open_media<'u>(
    units: impl Iterator<Item = (UnitId, UnitIndex, &'u Unit)>,
    state: &StateDir,
    provisional: &mut FileRollback,
    mut handed_over: Option<&mut HandedOverMedia>,
) -> Result<Vec<OpenMedium>, ServeError> {
    let is_served = handed_over.is_some();
    let mut open = |(_, _, unit): (UnitId, UnitIndex, &Unit)| {
        served_size::check(unit, state).map_err(ServeError::NotServed)?;
        if !is_served {
            served_size::check_unfinished(unit, state).map_err(ServeError::NotServed)?;
        }
        Ok(media::open(unit, state, provisional, handed_over.as_deref_mut())?)
    };
    units.map(&mut open).collect()
}

/// Takes the media that come with the sessions of another process, if there is one.
pub(super) fn receive_media(
    runtime: &RuntimeConfig,
    media: &mut [Vec<Option<OpenMedium>>],
    state: &StateDir,
    sessions: Option<&mut Sessions>,
) -> Result<(), ServeError> {
    let Some(sessions) = sessions else { return Ok(()) };
    let mut late = Succession::session_media(sessions)?;
    for (index, media) in media.iter_mut().enumerate() {
        for ((_, _, unit), medium) in runtime.units(index).zip(media) {
            if let Some(medium) = medium {
                medium.receive(unit, state, &mut late)?;
            }
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
    media: Vec<Vec<Option<OpenMedium>>>,
    (state, disks): (&StateDir, &mut DiskIds),
    is_handed_over: bool,
) -> Result<Vec<Vec<NewUnit>>, ServeError> {
    let load = |(index, media): (usize, Vec<Option<OpenMedium>>)| {
        let units = runtime.units(index).zip(media);
        let open = units.filter_map(|(unit, medium)| Some((unit, medium?)));
        load_units(open, state, disks, is_handed_over)
    };
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
        if let Some(unread) = medium.unread() {
            let (label, path) = (&unit.label, unread.path().display());
            return Err(ServeError::Failed(format!("{label}: {path} has no key yet")));
        }
        let naa = unit.identity.naa;
        let saved = state.load(naa)?.map(|bytes| (bytes, state.file(naa).display().to_string()));
        let record = medium.sanitize_record(unit);
        if let Some((bytes, path)) = &saved {
            let medium = (&*record, is_handed_over);
            let checked = sanitize_record::check(unit, (bytes, path), medium, &state.sanitize_file(naa));
            checked.map_err(ServeError::NotServed)?;
        }
        let disk = disks.name(unit, medium.identities());
        Ok(NewUnit { id, index, medium, disk, state: saved, record, is_handed_over })
    };
    units.map(&mut load).collect()
}

/// Media that must be read before they can be served, with their units.
pub(super) type UnreadMedia = Vec<(UnitId, UnreadMedium)>;

/// Returns how many reactors serve, and which of them owns each target: as in the process that is taken over,
/// if there is one.
pub(super) fn place(config: &Config, succession: Option<&Succession>) -> Result<(usize, Owners), ServeError> {
    let (count, former) = succession.map_or_else(
        || (reactors::reactor_count(config).min(placement::components(config).len()), <_>::default()),
        Succession::placement,
    );
    let count = count.max(1);
    Ok((count, placement::owners(config, &former, count)?))
}
