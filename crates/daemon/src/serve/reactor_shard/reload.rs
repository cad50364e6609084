//! Applies another configuration, in steps between which the reactor handles other events.
//!
//! New units are added first, when no LUN leads to them yet. Units that become read-only or get target ports
//! are updated next, before an initiator can reach them by the new configuration. Then the configuration of
//! the shard is replaced as a whole. All units that stay are updated after that, and units that no LUN leads
//! to any more are removed.

use crate::mailbox::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::vec::IntoIter;

use base::time::Instant;
use target::units::UnitId;

use super::kinds::downcast;
use super::{NewUnit, ReactorShard, RetiringUnit};
use crate::config::UnitIndex;
use crate::serve::media::disc::DiscDrive;
use crate::serve::media::disk::{Accepted, ComparedDisk, Disk};
use crate::serve::reactors;
use crate::serve::runtime_config::RuntimeConfig;

/// The time after which the reactor handles other events before it goes on. Replacing the configuration of
/// the shard is one piece, and takes as long as it takes.
const STEP_MAX: Duration = Duration::from_millis(2);

/// A configuration that a reactor is to apply.
pub(in crate::serve) struct Reload {
    pub(in crate::serve) runtime: RuntimeConfig,
    /// The units that are new.
    pub(in crate::serve) fresh: Vec<NewUnit>,
    /// What was found of the disks that stay; with `None` no disk is measured again.
    pub(in crate::serve) compared: Option<BTreeMap<UnitId, ComparedDisk>>,
    /// Receives which units are not served, and why. It is dropped when the configuration is applied.
    pub(in crate::serve) done: Sender<(UnitId, String)>,
}

/// A configuration that is being applied.
enum Steps {
    Adding {
        fresh: IntoIter<NewUnit>,
        runtime: RuntimeConfig,
        compared: Option<BTreeMap<UnitId, ComparedDisk>>,
    },
    Preparing {
        units: IntoIter<(UnitId, UnitIndex)>,
        runtime: RuntimeConfig,
        compared: Option<BTreeMap<UnitId, ComparedDisk>>,
    },
    Updating {
        units: IntoIter<(UnitId, UnitIndex)>,
        before: RuntimeConfig,
        compared: Option<BTreeMap<UnitId, ComparedDisk>>,
    },
    Removing {
        units: IntoIter<UnitId>,
        before: RuntimeConfig,
    },
}

impl ReactorShard {
    /// Applies another configuration. The caller waits for the end before it sends the next one.
    pub(in crate::serve) fn reload(&mut self, now: Instant, reload: Reload) {
        let Reload { runtime, fresh, compared, done } = reload;
        self.reload_steps(now, Steps::Adding { fresh: fresh.into_iter(), runtime, compared }, done);
    }

    fn reload_steps(&mut self, now: Instant, mut steps: Steps, done: Sender<(UnitId, String)>) {
        let began = std::time::Instant::now();
        while began.elapsed() < STEP_MAX {
            match self.reload_step(now, steps, &done) {
                Some(next) => steps = next,
                None => {
                    drop(done);
                    return;
                }
            }
        }
        // A reactor that has stopped applies nothing.
        let _ = self.own.post(move |member: &mut Self, now| member.reload_steps(now, steps, done));
    }

    /// Does the next step. Returns what remains; `None` if nothing does.
    fn reload_step(
        &mut self,
        now: Instant,
        steps: Steps,
        failures: &Sender<(UnitId, String)>,
    ) -> Option<Steps> {
        Some(match steps {
            Steps::Adding { mut fresh, runtime, compared } => match fresh.next() {
                Some(unit) => {
                    let id = unit.id;
                    if let Err(why) = self.add(now, &runtime, unit) {
                        crate::error!("{why}");
                        // The main thread waits for the answer.
                        let _ = failures.send((id, why));
                    }
                    Steps::Adding { fresh, runtime, compared }
                }
                None => {
                    let units = runtime.units(self.index).map(|(id, index, _)| (id, index));
                    Steps::Preparing { units: units.collect::<Vec<_>>().into_iter(), runtime, compared }
                }
            },
            Steps::Preparing { mut units, runtime, compared } => match units.next() {
                Some((id, index)) => {
                    if runtime.is_changed_first(&self.runtime, id)
                        && let Some(config) = runtime.unit_config(index)
                    {
                        self.shard.reconfigure_unit(now, id, config);
                    }
                    Steps::Preparing { units, runtime, compared }
                }
                None => {
                    let (units, before) = self.replace_config(now, runtime);
                    if compared.is_some() {
                        self.reopen_media(now);
                    }
                    Steps::Updating { units, before, compared }
                }
            },
            Steps::Updating { mut units, before, compared } => match units.next() {
                Some((id, index)) => {
                    self.enable_write_cache(id);
                    if self.runtime.presents_otherwise(&before, id)
                        && let Some(config) = self.runtime.unit_config(index)
                    {
                        self.shard.reconfigure_unit(now, id, config);
                    }
                    if let Some(compared) = &compared {
                        self.update_capacity(now, id, compared.get(&id));
                    }
                    Steps::Updating { units, before, compared }
                }
                None => {
                    self.tell_drive_names(now);
                    let kept: BTreeSet<UnitId> = self.runtime.units(self.index).map(|(id, ..)| id).collect();
                    let gone = self.state_files.keys().filter(|id| !kept.contains(id)).copied();
                    Steps::Removing { units: gone.collect::<Vec<_>>().into_iter(), before }
                }
            },
            Steps::Removing { mut units, before } => {
                self.remove(now, units.next()?, &before);
                Steps::Removing { units, before }
            }
        })
    }

    /// Replaces the configuration of the shard. Returns the units that it has now, and the former
    /// configuration.
    fn replace_config(
        &mut self,
        now: Instant,
        runtime: RuntimeConfig,
    ) -> (IntoIter<(UnitId, UnitIndex)>, RuntimeConfig) {
        let before = std::mem::replace(&mut self.runtime, runtime);
        // The division of memory depends on the number of reactors, and does not change while they run.
        self.shard.set_limits(&reactors::limits(&self.runtime.config, self.index, 1));
        self.shard.set_slow_limit(self.runtime.config.slow_command);
        self.shard.apply(now, self.runtime.shard_config(self.index));
        let ours: Vec<(UnitId, UnitIndex)> =
            self.runtime.units(self.index).map(|(id, index, _)| (id, index)).collect();
        for (id, _) in &ours {
            if let (Some(medium), Some(unit)) = (self.media.get(id), self.runtime.unit(*id)) {
                medium.configure(unit);
            }
        }
        (ours.into_iter(), before)
    }

    /// Serves exports that were withheld as they are now, and opens the devices again that were removed.
    fn reopen_media(&mut self, now: Instant) {
        let units: Vec<_> = self.runtime.units(self.index).map(|(id, _, unit)| (id, unit.clone())).collect();
        for (id, unit) in units {
            let Some(medium) = self.media.get(&id) else { continue };
            if medium.reopen(&unit) {
                crate::info!("{} is served again", unit.label);
                self.shard.withhold_medium(now, id, false);
            }
        }
    }

    /// Lets a medium acknowledge writes before they are durable, if its unit is configured so. The unit has
    /// to be reconfigured before its next command: it must know that it has to flush.
    fn enable_write_cache(&self, id: UnitId) {
        if self.runtime.unit(id).is_some_and(|unit| unit.write_cache)
            && let Some(medium) = self.media.get(&id)
        {
            medium.enable_write_cache();
        }
    }

    /// Adopts the present size of a disk that was found right, or withholds one that was not. What happened
    /// to the disk since then is left to the next reload.
    fn update_capacity(&mut self, now: Instant, id: UnitId, compared: Option<&ComparedDisk>) {
        let (Some(medium), Some(unit)) = (self.media.get(&id), self.runtime.unit(id)) else { return };
        // The image of a disc is never adopted as it is: another one is another disc.
        let Some(disk) = downcast::<Disk>(medium.as_ref()) else { return };
        let label = &unit.label;
        // A disk that is new was opened as it is.
        let Some(compared) = compared else { return };
        if let Some(why) = &compared.wrong {
            self.withhold(now, id, why);
            return;
        }
        if disk.info().is_withheld() && !compared.was_withheld {
            return;
        }
        match compared.size.as_ref().map(|size| disk.accept_size(*size, compared.len_min)) {
            Ok(Accepted::Shrunk) => self.withhold(now, id, "the file has shrunk during the reload"),
            Ok(Accepted::Served { changed, withheld }) => {
                if changed {
                    crate::info!("the size of {label} has changed");
                    self.shard.capacity_changed(now, id);
                }
                if withheld {
                    crate::info!("{label} is served again");
                    self.shard.withhold_medium(now, id, false);
                }
            }
            Err(error) => {
                crate::error!("cannot determine the size of {label}: {error}");
            }
        }
    }

    /// Removes a unit that no LUN leads to any more.
    fn remove(&mut self, now: Instant, id: UnitId, before: &RuntimeConfig) {
        let state_file = self.state_files.remove(&id);
        let medium = self.media.remove(&id);
        if let Some(disc) = medium.as_ref().and_then(|medium| downcast::<DiscDrive>(medium.as_ref())?.disc())
        {
            disc.info().leave();
        }
        self.pending_discs.remove(&id);
        self.libraries.remove(&id);
        let unit = before.unit(id);
        let label = unit.map_or("a disk", |unit| unit.label.as_str()).to_owned();
        let path = unit.and_then(|unit| unit.medium.path().cloned());
        self.retiring.push((id, RetiringUnit { label, path, state_file, told: false }));
        self.shard.remove_unit(now, id);
        self.close_removed();
        if let Some((_, waits)) = self.retiring.last_mut().filter(|(known, _)| *known == id) {
            let label = &waits.label;
            crate::info!("{label} is removed; it is closed when its outstanding I/O has ended");
            waits.told = true;
        }
    }
}
