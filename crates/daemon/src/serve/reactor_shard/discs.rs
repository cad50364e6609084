//! Puts discs into drives.

use std::path::PathBuf;

use base::state_machine::MediumId;
use base::time::Instant;
use device::removal_obstacle::RemovalObstacle;
use target::units::UnitId;

use super::ReactorShard;
use crate::serve::media::disc::{DiscDrive, NewDisc};

impl ReactorShard {
    /// Puts discs into drives. A disc that an initiator holds stays, and the initiator is asked to release
    /// it; the next reload tries again. One that only has to be saved is replaced when it is.
    pub(in crate::serve) fn change_discs(&mut self, now: Instant, discs: Vec<NewDisc>) {
        for NewDisc { id, image } in discs {
            let (Some(drive), Some(unit)) = (self.drive(id), self.runtime.unit(id)) else {
                continue;
            };
            let label = unit.label.clone();
            // Nothing more can become of a disc that is withheld.
            let present = drive.disc().filter(|disc| disc.withheld().is_none());
            let obstacle = present.as_ref().and_then(|_| self.shard.removal_obstacle(id));
            let path = present.map_or(PathBuf::new(), |disc| disc.info().path.clone());
            let path = path.display();
            match obstacle {
                None => self.put_disc(now, &drive, &label, NewDisc { id, image }),
                Some(RemovalObstacle::InUse) => {
                    crate::error!(
                        "{label}: {path} stays in the drive, because an initiator prevents its removal; \
                         unmount or eject it there, and reload the configuration again"
                    );
                    self.shard.removal_requested(now, id);
                }
                Some(RemovalObstacle::Unsaved | RemovalObstacle::Saving) => {
                    crate::info!(
                        "{label}: {path} stays in the drive until what initiators have appended to it is \
                         saved, and is replaced then"
                    );
                    self.pending_discs.insert(id, NewDisc { id, image });
                    self.shard.save_medium(now, id);
                }
            }
        }
        self.replace_saved_discs(now);
    }

    /// Replaces the discs that had to be saved first, if they are.
    pub(super) fn replace_saved_discs(&mut self, now: Instant) {
        let is_saved = |id: &UnitId| self.shard.removal_obstacle(*id) != Some(RemovalObstacle::Saving);
        let saved: Vec<UnitId> = self.pending_discs.keys().copied().filter(is_saved).collect();
        for id in saved {
            let (Some(disc), Some(drive)) = (self.pending_discs.remove(&id), self.drive(id)) else {
                continue;
            };
            let label = self.runtime.unit(id).map(|unit| unit.label.clone()).unwrap_or_default();
            if self.shard.removal_obstacle(id).is_none() {
                self.put_disc(now, &drive, &label, disc);
            } else {
                let path = drive.disc().map_or(PathBuf::new(), |disc| disc.info().path.clone());
                crate::error!(
                    "{label}: {} stays in the drive, because an initiator has used it again, or what was \
                     appended to it cannot be saved; eject it there, and reload the configuration again",
                    path.display()
                );
                self.shard.removal_requested(now, id);
            }
        }
    }

    /// Forgets the discs that are to be put into drives when others are saved, and closes their images.
    /// Returns the drives.
    pub(in crate::serve) fn forget_pending_discs(&mut self) -> Vec<UnitId> {
        std::mem::take(&mut self.pending_discs).into_keys().collect()
    }

    /// Returns the drive for discs of a unit.
    fn drive(&self, id: UnitId) -> Option<DiscDrive> {
        self.medium::<DiscDrive>(id).cloned()
    }

    fn put_disc(&mut self, now: Instant, drive: &DiscDrive, label: &str, NewDisc { id, image }: NewDisc) {
        let disc = image.map(|image| image.place(&self.files, MediumId(id.0), label));
        match &disc {
            Some(disc) => crate::info!("{label}: {} is in the drive", disc.info().path.display()),
            None => crate::info!("{label}: the drive is empty"),
        }
        let (owner, left) = (label.to_owned(), drive.disc().map(|disc| disc.info().path.clone()));
        if let Some(former) = drive.disc() {
            former.info().leave();
        }
        drive.put(disc.clone(), move |is_durable| {
            if !is_durable {
                let left = left.unwrap_or_default();
                crate::error!(
                    "{owner}: what hosts wrote last may be missing on the disc {}, which has left the drive",
                    left.display()
                );
            }
        });
        if let Some(disc) = disc {
            if let Some(unit) = self.runtime.unit(id) {
                self.record_losses_of(id, unit, &disc, None);
            }
            self.watch(id, &disc);
        }
        self.shard.medium_replaced(now, id);
    }
}

#[cfg(test)]
mod tests {
    use crate::mailbox::channel;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;

    use drivers::config::{Config as DriverConfig, EngineChoice};
    use drivers::reactor::Reactor;
    use iscsi::target::engine::Limits;
    use shard::shard::Shard;

    use super::*;
    use crate::config::{Config, Environment, Flags};
    use crate::scratch::Scratch;
    use crate::serve::media::disc;
    use crate::serve::media::disk::Disk;
    use crate::serve::media_watch::MediaWatch;
    use crate::serve::placement::Owners;
    use crate::serve::reactor_shard::ReactorContext;
    use crate::serve::runtime_config::{IdAllocator, RuntimeConfig};

    /// Returns the configuration of a target without LUNs.
    fn runtime(directory: &Path) -> RuntimeConfig {
        let file = directory.join("targe.toml");
        let environment = Environment::for_tests(directory);
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let text =
            "[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{ type = \"null\", size = \"1M\" }]\n";
        let loaded = Config::load_text_without_media(&flags, &environment, &file, text, None);
        let config = loaded.map_err(|report| report.to_string()).unwrap().config;
        let mut numbers = IdAllocator::default();
        let listening: Vec<SocketAddr> = config.portals.iter().map(|portal| portal.listen).collect();
        numbers.assign_ports_and_records(&config).unwrap();
        numbers.runtime_config(Arc::new(config), &listening, &Owners::new())
    }

    #[test]
    fn a_disc_that_has_left_does_not_withhold_the_next_one() {
        let scratch = Scratch::new();
        let config = DriverConfig { engine: EngineChoice::Epoll, ..DriverConfig::default() };
        let reactor = Reactor::<ReactorShard>::new(&config).unwrap();
        let runtime = runtime(scratch.path());
        let shard = Shard::new(runtime.shard_config(0), Limits::default(), reactor.pool().clone());
        let (state_writer, _writes) = channel();
        let (events, _told) = channel();
        let context = ReactorContext {
            index: 0,
            files: reactor.files().clone(),
            pool: reactor.pool().clone(),
            state_writer,
            media_watch: MediaWatch::default(),
            own: reactor.handle(),
            events,
        };
        let mut member = ReactorShard::new(shard, runtime, context);
        let (now, id, drive) = (Instant::ORIGIN, UnitId(9), DiscDrive::new(None));
        member.media.insert(id, Box::new(drive.clone()));
        let put = |member: &mut ReactorShard, name: &str| {
            let path = scratch.path().join(name);
            crate::disc_image::create(&path, "bd-re", Some(1 << 20)).unwrap();
            let image = disc::open(&path, false).unwrap();
            member.put_disc(now, &drive, "drive", NewDisc { id, image });
            drive.disc().unwrap()
        };
        let served = |disc: &Disk| Arc::downgrade(&disc.info());
        let first = put(&mut member, "first.iso");
        let second = put(&mut member, "second.iso");
        member.withhold_served(now, id, &served(&first), "its path leads elsewhere");
        assert_eq!((first.withheld(), second.withheld()), (None, None));
        member.withhold_served(now, id, &served(&second), "its path leads elsewhere");
        assert!(second.withheld().is_some());
        member.media.remove(&id);
        member.withhold_served(now, id, &served(&second), "the drive is empty");
    }
}
